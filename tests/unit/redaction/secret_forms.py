"""Ways in which secrets stand in logs, configs and command lines. {s} is any secret, {u} one that stands unquoted in a URL or a word."""

from __future__ import annotations

#: Beside a name, in all kinds of syntax.
NAMED = (
    "MYSQL_PWD={s}", "export GITHUB_PAT={s}", "PGPASS={s}", "pgpass: {s}", 'MY_CREDS="{s}"', "cred={s}", "WANDB_KEY={s}", "DB_PASS = {s}", "smbpasswd: {s}",
    "MinioRootPassword={s}", "clientSecret: {s}", "apiKey={s}", "X_AUTH={s}", "TWILIO_SID={u}", "VAULT_TOKEN_2={s}", "SSH_KEY_BASE64={u}", "JWT={u}", "TOTP: {u}",
    "hf_token: {s}", "hf_token = '{s}'", "export NGC_API_KEY={s}", "password={s}", "passwd\t=\t{s}", "password := {s}", "api_key => {s}", "passphrase -> {s}",
    "'x-api-key': '{s}'", '("x-api-key", "{s}")', '["--api-key", "{s}"]', '{{"token": "{s}", "a": 1}}', "os.environ['HF_TOKEN'] = '{s}'", 'config["api_key"]="{s}"',
    '\\"password\\": \\"{u}\\"', '{{\\"api_key\\":\\"{u}\\"}}', '"Env": ["HF_TOKEN={u}", "A=b"]', "env: [{{name: HF_TOKEN, value: {u}}}]", 'bearer_token: "{s}"',
    '- name: DB_PASSWORD\n  value: "{s}"', '{{"name": "MYSQL_PWD", "value": "{s}"}}', 'parameters {{ key: "hf_token" value: {{ string_value: "{s}" }} }}',
    'parameters: {{\n  key: "api_key"\n  value: {{\n    string_value: "{s}"\n  }}\n}}', "--password {s}", "--hf-token={s}", "docker run -e HF_TOKEN={u} image",
    "ENV API_KEY {s}", "ARG NPM_TOKEN={s}", "note:password={s}", "I0101 12:00:00 x.cc:3] token={s}", "Server=x;Password={u};Database=y", "AccountKey={u}==;Suffix=core",
    "credentials:\n  user: {u}\n  list:\n  - {u}", "password: |\n  {u}\n  {u}", "password: correct horse {u}", "token%3D{u}", "%22token%22%3A%22{u}%22",
    "Set-Cookie: session={u}; Path=/", "X-Auth-Token: {s}", "Authorization: Bearer {s}", "authorization=AWS4-HMAC-SHA256 Credential=A/B, Signature={u}",
    "<password>{u}</password>", '<token type="x">{u}</token>', '<add name="password" value="{u}"/>', "API key: {s}", "secret access key = {s}", "The API key is {u}",
    "AWS_SESSION_TOKEN={s}", "aws_secret_access_key = {s}", "x --from-literal=password={u}", "//registry.example/:_authToken={u}", 'connectionString: "Server=x;Password={u}"',
    "credentials: [{u}, {u}]", "secrets: {{a: {u}, b: [{u}]}}",
)  # fmt: skip
#: Known by where they stand.
PLACED = (
    "curl -X POST https://hooks.slack.com/services/T00000000/B00000000/{u} -d x", "https://discord.com/api/webhooks/123/{u}", "https://x.webhook.office.com/webhookb2/a/{u}",
    "https://open.example/open-apis/bot/v2/hook/{u}", "https://events.example/integration/{u}/enqueue", "https://maker.example/trigger/ev/with/key/{u}",
    "https://x.blob.example/c/b?sv=2020&sig={u}&se=3", "https://x/y?a=1&token={u}", "https://x/y?X-Amz-Signature={u}", "https://x/y?b=2&key={u}#top", "redis://:{u}@host:6379/0",
    "postgres://user:{u}/{u}@db.internal:5432/x", "mysql://root:{u}@{u}@h/d", "https://{u}@o1.sentry.example/1", "git clone https://oauth2:{u}@git.example/x.git", "wss://{u}@x",
    "HTTPS_PROXY=http://bob:{u}@proxy:3128", "DATABASE_URL=mysql://root:{u}@h/d", "user:{u}@host.example", "curl -u bob:{u} https://x", "sshpass -p {u} ssh x",
    "docker login nvcr.example -u x -p {u}", "machine h login bob password {u}", "CREATE USER x IDENTIFIED BY '{u}'", "Using token: {u}", "Bearer {u}", "a {{'Authorization': 'Basic {u}'}}",
    'DOCKER_AUTH_CONFIG={{"auths": {{"nvcr.example": {{"auth": "{u}"}}}}}}', '{{"auths": {{"nvcr.example": {{"auth": "{u}"}}}}}}',
    "-----BEGIN RSA PRIVATE KEY-----\n{u}\n{u}\n-----END RSA PRIVATE KEY-----", "-----BEGIN PGP PRIVATE KEY BLOCK-----\n{u}\n-----END PGP PRIVATE KEY BLOCK-----",
    '{{"x": "-----BEGIN OPENSSH PRIVATE KEY-----\\n{u}\\n-----END OPENSSH PRIVATE KEY-----"}}',
)  # fmt: skip
#: Known by what they look like.
TOKENS = (
    "hf_AbCdEfGhIjKlMnOpQrStUvWx", "nvapi-abcdEFGH1234_-xyz", "ghp_abcdefghijklmnopqrstuvwxyz0123", "github_pat_11ABCDEFG_abcdefgh", "glpat-abcdefgh12345678",
    "sk-proj-abcdefgh12345678", "xoxb-123456789012-abcdef", "AKIAIOSFODNN7EXAMPLE", "AIzaSyA-abcdefghijklmnopqrstuvwx", "npm_abcdefghijklmnopqrstuvwxyz0123456789",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-DEF_123", "123456789:AAabcdefghijklmnopqrstuvwxyz-_12345", "dapi0123456789abcdef0123456789abcdef", "dckr_pat_abcdefghijklmnop",
    "SG.abcdefghijklmnop.qrstuvwxyz0123456789", "key-0123456789abcdef0123456789abcdef", "hvs.abcdefghijklmnopqrst", "AC0123456789abcdef0123456789abcdef", "gsk_abcdefghijklmnop",
    "q8Zt+R3mV2x9LpW2kYbNc7HdJ0sTfGuE4iAoXrQ1", "pK3vT9qLm2Xz8RbW4nYc7HdJ", "AGE-SECRET-KEY-1QQQQQQQQQQQQQQQQ", "rk_live_abcdefgh12345678", "pypi-AgEIcHlwaS5vcmcabc",
)  # fmt: skip
#: Lines of real logs and configs that say nothing secret.
HARMLESS = (
    "hf_quant_config.json and hf_transfer_speedup", "Loading nvidia/Llama-3.1-8B-Instruct-FP8 from /models/Meta-Llama-3-8B-Instruct-GPTQ-Int4",
    "max_num_tokens: 8192, eos_token: </s>, time_to_first_token: 0.02, tokens_per_block=32", "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "tritonserver:25.12-trtllm-python-py3@sha256:0123456789abcdef", "recall@10: 0.93 hits@5", "_ZN12tensorrt_llm7runtime15TllmRuntime7ExecuteERKNS_11SizeTypeE32",
    "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32_stage4_warpsize2x2x1_tensor16x8x16", "token generation took 5 ms; tokens: 12; secretary: yes",
    "[TRT] [I] Total Weights Memory: 16060522624 bytes", 'key: "gpt_model_path" value: { string_value: "/engine" }', "pad_token_id: 151643, num_key_value_heads: 8",
    "I0101 10:00:00.123 server.cc:12] Started GRPCInferenceService at 0.0.0.0:8001", "inputs_key: abcdef", "host: 0.0.0.0", "token == 5; Token::kind; bypass: 3; compass=4",
    'File "/usr/lib/python3.12/site-packages/tensorrt_llm/commands/build.py", line 12, in main', "TensorRT-LLM version: 1.2.1", "next token follows here", "Tokens: 5",
    "per_token_scale: 0.1 use_per_token=true image_token_index: 32000", "missing_keys: [lm_head.weight]", "std::unique_ptr<Auth::Foo> x", "PWD=/workspace OLDPWD=/",
    "author: someone; authority; tokenizer_dir: /models/t; TOKENIZERS_PARALLELISM=true", "credit: 5 incredible sacred: 1", "monkey business keyboard: us",
)  # fmt: skip
