"""Header compression, by the examples of RFC 7541."""

from __future__ import annotations

import pytest

from trtbuild_client.hpack import Decoder, HpackError, encode, huffman_decode


def test_the_examples_of_the_rfc_are_decoded_one_after_the_other() -> None:
    decoder = Decoder()  # appendix C.4: requests with Huffman coding on one connection
    first = bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff")
    second = bytes.fromhex("828684be5886a8eb10649cbf")
    third = bytes.fromhex("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf")
    assert dict(decoder.decode(first))[b":authority"] == b"www.example.com"
    assert (b"cache-control", b"no-cache") in decoder.decode(second)
    headers = decoder.decode(third)
    assert headers == [
        (b":method", b"GET"),
        (b":scheme", b"https"),
        (b":path", b"/index.html"),
        (b":authority", b"www.example.com"),
        (b"custom-key", b"custom-value"),
    ]


def test_entries_are_evicted_as_in_the_rfc() -> None:
    decoder = Decoder()  # appendix C.5: responses with a table of 256 bytes
    decoder.decode(bytes.fromhex("3fe101"))
    decoder.decode(
        bytes.fromhex(
            "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d54"
            "6e1768747470733a2f2f7777772e6578616d706c652e636f6d"
        )
    )
    assert decoder.decode(bytes.fromhex("4803333037c1c0bf"))[0] == (b":status", b"307")
    last = decoder.decode(
        bytes.fromhex(
            "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f3d4153444a4b485"
            "14b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b2076657273696f6e3d31"
        )
    )
    assert dict(last)[b"set-cookie"] == b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 300, 20_000])
def test_what_is_encoded_is_decoded(size: int) -> None:
    headers = [(b":path", b"/x"), (b"long", b"v" * size)]
    assert Decoder().decode(encode(headers)) == headers


@pytest.mark.parametrize("block", ["80", "ff", "40", "8286ffff", "4104777777", "c0"])
def test_broken_blocks_are_refused(block: str) -> None:
    with pytest.raises(HpackError):
        Decoder().decode(bytes.fromhex(block))


def test_huffman_padding_must_be_the_beginning_of_the_end_code() -> None:
    assert huffman_decode(bytes.fromhex("f1e3c2e5f23a6ba0ab90f4ff")) == b"www.example.com"
    with pytest.raises(HpackError):
        huffman_decode(bytes.fromhex("f1e3c2e5f23a6ba0ab90f400"))
