"""Load tests of a running server: what to send and when, a transport that costs little, records, statistics, reports.

The clock of a request starts when it was meant to be sent. Whatever happens to it is counted under a name of its own.
"""
