// The data port: a server and its calls, and clients.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string_view>
#include <system_error>
#include <tuple>
#include <vector>

#include "binding.h"
#include "data_call.h"
#include "data_client.h"
#include "data_server.h"
#include "tls.h"

namespace gigl {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Context = std::shared_ptr<TlsContext>;
using Tokens = std::vector<nb::bytes>;

std::string_view TextOf(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

std::span<const std::byte> BytesOf(const nb::bytes& bytes) {
  return std::as_bytes(std::span(bytes.c_str(), bytes.size()));
}

nb::bytes NewBytes(std::string_view text) { return nb::bytes(text.data(), text.size()); }

Context Unconst(const std::shared_ptr<const TlsContext>& context) { return std::const_pointer_cast<TlsContext>(context); }

// Null where every caller is accepted.
std::shared_ptr<const AcceptedTokens> NewTokens(const Tokens& shown, const nb::bytes& refusal) {
  if (shown.empty()) return nullptr;
  std::vector<std::string> copied;
  for (const nb::bytes& each : shown) {
    Require(each.size() > 0, "an accepted token is empty");
    copied.emplace_back(TextOf(each));
  }
  return std::make_shared<AcceptedTokens>(std::move(copied), std::string(TextOf(refusal)));
}

std::unique_ptr<DataServer> NewServer(const std::string& host, uint16_t port, const Context& tls, size_t strangers,
                                      size_t per_address, double stranger_s, double idle_s, const Tokens& tokens,
                                      const nb::bytes& refusal) {
  DataLimits limits;
  limits.strangers = strangers;
  limits.per_address = per_address;
  limits.stranger_s = stranger_s;
  limits.idle_s = idle_s;
  auto accepted = NewTokens(tokens, refusal);
  try {
    nb::gil_scoped_release release;
    return std::make_unique<DataServer>(host, port, tls, limits, std::move(accepted));
  } catch (const std::system_error& error) {
    PyErr_SetString(PyExc_OSError, error.code().message().c_str());
  } catch (const std::runtime_error& error) {
    PyErr_SetString(PyExc_OSError, error.what());
  }
  throw nb::python_error();
}

std::tuple<uint8_t, uint64_t, uint64_t> Call(DataClient& client, const nb::bytes& header, const nb::bytes& body,
                                             double timeout_s, bool sample) {
  Require(header.size() <= kMaxHeaderText, "the header text is too long");
  nb::gil_scoped_release release;
  const ReplyHead head = client.Call(TextOf(header), BytesOf(body), timeout_s, sample ? kSample : 0);
  return {head.status, head.payload_bytes, head.membership};
}

void ReadInto(DataClient& client, const Array<uint8_t>& out) {
  nb::gil_scoped_release release;
  client.Read(std::as_writable_bytes(Span(out)));
}

// The body, or None where it does not match its checksum.
nb::object ReadBody(DataCall& call, double total_s, double stall_s) {
  nb::bytes body = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(call.head().body_bytes)));
  if (!body.is_valid()) throw nb::python_error();
  const std::span<std::byte> out(reinterpret_cast<std::byte*>(PyBytes_AsString(body.ptr())), body.size());
  bool matches;
  {
    nb::gil_scoped_release release;
    matches = call.ReadBody(out, Patience::Of(total_s, stall_s));
  }
  return matches ? nb::object(body) : nb::none();
}

void Reply(DataCall& call, const std::vector<Bytes>& chunks, double total_s, double stall_s,
           std::optional<uint32_t> crc, uint64_t membership) {
  std::vector<std::span<const std::byte>> pieces;
  pieces.reserve(chunks.size());
  for (const Bytes& chunk : chunks) pieces.push_back({reinterpret_cast<const std::byte*>(chunk.data()), chunk.shape(0)});
  nb::gil_scoped_release release;
  call.Reply(pieces, crc ? &*crc : nullptr, membership, Patience::Of(total_s, stall_s));
}

// Holds chunks until a reply was sent, which may be after the Python thread has gone on.
std::shared_ptr<const void> Kept(std::vector<Bytes> chunks) {
  return {new std::vector<Bytes>(std::move(chunks)), [](const void* kept) {
            nb::gil_scoped_acquire acquire;
            delete static_cast<const std::vector<Bytes>*>(kept);
          }};
}

void Post(DataCall& call, std::vector<Bytes> chunks, double seconds, uint64_t membership) {
  std::vector<std::span<const std::byte>> pieces;
  pieces.reserve(chunks.size());
  for (const Bytes& chunk : chunks) pieces.push_back({reinterpret_cast<const std::byte*>(chunk.data()), chunk.shape(0)});
  auto kept = Kept(std::move(chunks));
  nb::gil_scoped_release release;
  call.Post(pieces, std::move(kept), membership, seconds);
}

std::vector<std::tuple<std::string, uint16_t, std::string, bool, size_t>> Sweep(DataServer& server) {
  std::vector<DroppedConnection> dropped;
  {
    nb::gil_scoped_release release;
    dropped = server.Sweep();
  }
  std::vector<std::tuple<std::string, uint16_t, std::string, bool, size_t>> told;
  told.reserve(dropped.size());
  for (auto& each : dropped) {
    told.emplace_back(std::move(each.address), each.port, std::move(each.reason), each.refused, each.count);
  }
  return told;
}

}  // namespace

void BindData(nb::module_& m) {
  using namespace nb::literals;
  using Release = nb::call_guard<nb::gil_scoped_release>;
  nb::exception<TlsUnusable>(m, "TlsUnusable", PyExc_ValueError);
  const auto error = nb::exception<StreamError>(m, "StreamError");
  nb::exception<StreamClosed>(m, "StreamClosed", error);
  nb::exception<StreamTimedOut>(m, "StreamTimedOut", error);
  nb::exception<StreamCancelled>(m, "StreamCancelled", error);

  nb::class_<TlsContext>(m, "TlsContext")
      .def_static("server", [](const nb::bytes& chain, const nb::bytes& key, const nb::bytes& client_roots) {
        return Unconst(TlsContext::Server(TextOf(chain), TextOf(key), TextOf(client_roots)));
      }, "chain"_a, "key"_a, "client_roots"_a = nb::bytes("", 0))
      .def_static("client", [](const nb::bytes& roots, const nb::bytes& chain, const nb::bytes& key) {
        return Unconst(TlsContext::Client(TextOf(roots), TextOf(chain), TextOf(key)));
      }, "roots"_a, "chain"_a = nb::bytes("", 0), "key"_a = nb::bytes("", 0));

  nb::class_<DataClient>(m, "DataClient")
      .def("__init__", [](DataClient* self, std::string host, uint16_t port, const Context& tls,
                           const std::string& name) {
        new (self) DataClient(std::move(host), port, tls, name);
      }, "host"_a, "port"_a, "tls"_a.none() = nb::none(), "name"_a = "")
      .def("connect", &DataClient::Connect, "timeout_s"_a, Release())
      .def("call", &Call, "header"_a, "body"_a, "timeout_s"_a, "sample"_a = false)
      .def("expect_within", &DataClient::ExpectWithin, "seconds"_a)
      .def("read", &ReadInto, "out"_a.noconvert())
      .def("finish", &DataClient::Finish, Release())
      .def("cancel", &DataClient::Cancel, Release())
      .def("is_stale", &DataClient::IsStale)
      .def_prop_ro("left", &DataClient::left)
      .def_prop_ro("reusable", &DataClient::reusable);

  nb::class_<DataCall>(m, "DataCall")
      .def_prop_ro("version", [](const DataCall& call) { return call.head().version; })
      .def_prop_ro("unread", [](const DataCall& call) { return (call.head().flags & kChecksumUnread) != 0; })
      .def_prop_ro("asks_batch", [](const DataCall& call) { return (call.head().flags & kSample) != 0; })
      .def_prop_ro("id", &DataCall::id)
      .def_prop_ro("body_bytes", [](const DataCall& call) { return call.head().body_bytes; })
      .def_prop_ro("header", [](const DataCall& call) { return NewBytes(call.header()); })
      .def_prop_ro("address", &DataCall::address)
      .def_prop_ro("port", &DataCall::port)
      .def_prop_ro("certificate", [](const DataCall& call) { return NewBytes(call.certificate()); })
      .def("read_body", &ReadBody, "total_s"_a, "stall_s"_a)
      .def("reply", &Reply, "chunks"_a, "total_s"_a, "stall_s"_a, "crc"_a.none() = nb::none(), "membership"_a = 0)
      .def("refuse", [](DataCall& call, const nb::bytes& record, double total_s, bool closes) {
        nb::gil_scoped_release release;
        call.Refuse(BytesOf(record), closes, Patience::Of(total_s, total_s));
      }, "record"_a, "total_s"_a, "closes"_a = false)
      .def("wait", &DataCall::Wait, Release())
      .def("post", &Post, "chunks"_a, "seconds"_a, "membership"_a = 0)
      .def("post_refusal", [](DataCall& call, const nb::bytes& record, double seconds) {
        std::string copied(TextOf(record));
        nb::gil_scoped_release release;
        call.PostRefusal(std::move(copied), seconds);
      }, "record"_a, "seconds"_a)
      .def("cut_reply", [](DataCall& call, const std::string& reason) {
        nb::gil_scoped_release release;
        return call.CutReply(reason);
      }, "reason"_a)
      .def_prop_ro("gone", &DataCall::Gone)
      .def("cancel", &DataCall::Cancel);

  nb::class_<DataServer>(m, "DataServer")
      .def(nb::new_(&NewServer), "host"_a, "port"_a, "tls"_a.none() = nb::none(), "strangers"_a = 256,
           "per_address"_a = 4096, "stranger_s"_a = 15.0, "idle_s"_a = 300.0, "tokens"_a = Tokens(),
           "refusal"_a = nb::bytes("", 0))
      .def_prop_ro("port", &DataServer::port)
      .def("renew", [](DataServer& server, const Context& tls) { server.Renew(tls); }, "tls"_a.none())
      .def("accept", [](DataServer& server, const Tokens& tokens, const nb::bytes& refusal) {
        server.Accept(NewTokens(tokens, refusal));
      }, "tokens"_a, "refusal"_a)
      .def("next", &DataServer::Next, "timeout_s"_a, Release())
      .def("take_gone", &DataServer::TakeGone, Release())
      .def("sweep", &Sweep)
      .def("stop", &DataServer::Stop, Release())
      .def("cut_all", &DataServer::CutAll, Release())
      .def_prop_ro("num_connections", &DataServer::num_connections)
      .def_prop_ro("num_strangers", &DataServer::num_strangers)
      .def_prop_ro("num_networks", &DataServer::num_networks);
}

}  // namespace gigl
