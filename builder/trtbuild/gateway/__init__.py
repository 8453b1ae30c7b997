"""`trtbuild gateway`: OpenAI's HTTP API in front of a Triton server with a TensorRT-LLM model of any variant.

`http_*` knows HTTP, `requests` and `documents` know OpenAI's objects, `backend` knows Triton through `trtbuild_client`; `generation`
stands between them and knows neither.
"""
