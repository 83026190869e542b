#!/usr/bin/env bash
# Candidates for the data port, in C++ on both sides: CPU seconds per GB of frames, and what a small call takes.
#
#   benchmarks/transports/run.sh [ROUNDS]
#
# Needs g++, OpenSSL's headers and gRPC's (Debian: libssl-dev libgrpc++-dev pkg-config); Arrow's come with pyarrow. Rounds alternate.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
rounds=${1:-3} frames=${FRAMES:-24} frame_bytes=${FRAME_BYTES:-120000000} small_calls=${SMALL_CALLS:-4000}
python=${PYTHON:-$here/../../.venv/bin/python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

arrow=$("$python" -c 'import pyarrow; print(pyarrow.__path__[0])')
flags="-O2 -std=c++20 -I$here"
g++ $flags -o "$work/sockets" "$here/sockets.cc" -lssl -lcrypto
g++ $flags -o "$work/grpc_stream" "$here/grpc_stream.cc" $(pkg-config --libs grpc++)
g++ $flags -isystem "$arrow/include" -o "$work/flight_server" "$here/flight_server.cc" \
  "$arrow"/libarrow_flight.so.* "$arrow"/libarrow.so.* -Wl,-rpath,"$arrow"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost \
  -addext subjectAltName=DNS:localhost -keyout "$work/server.key" -out "$work/server.pem" 2>"$work/openssl.log"

# As in our own processes, glibc keeps the memory that replies land in.
export MALLOC_TRIM_THRESHOLD_=67108864 MALLOC_MMAP_THRESHOLD_=8388608
for _ in $(seq "$rounds"); do
  for kind in plain tls; do
    for program in sockets grpc_stream flight_server; do
      timeout 300 "$work/$program" "$kind" "$frames" "$frame_bytes" "$small_calls" "$work"
    done
  done
done
echo "load: $(cut -d' ' -f1-3 /proc/loadavg)" >&2
