# For `halflabel serve` and `halflabel review`. UNTESTED: this file has never been built.
#
#   docker build -t halflabel .
#   docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD/runs:/data/runs:ro" halflabel serve runs/first --host 0.0.0.0
#   docker run --rm -p 127.0.0.1:8765:8765 -v "$PWD:/data" halflabel \
#       review runs/first photos/ --host 0.0.0.0 --port 8765
#
# Neither server is encrypted: publish the ports to 127.0.0.1, or put a server with TLS before them.
FROM python:3.13-slim
COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
RUN pip install --no-cache-dir "/src[web]" && useradd --create-home halflabel
USER halflabel
WORKDIR /data
ENTRYPOINT ["halflabel"]
CMD ["--help"]
