// gRPC's generic calls, a stream of chunks: the sender's slices are not copied, the receiver copies them to the slot once.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include "harness.h"

namespace {

class Reply : public grpc::ServerGenericBidiReactor {
  public:
    Reply() { StartRead(&request_); }
    void OnReadDone(bool ok) override {
        if (!ok) return Finish(grpc::Status::OK);
        grpc::Slice size;  // A message may come in pieces.
        if (!request_.DumpToSingleSlice(&size).ok() || size.size() != sizeof left_) return Finish(grpc::Status::CANCELLED);
        memcpy(&left_, size.begin(), sizeof left_);
        next();
    }
    void OnWriteDone(bool ok) override {
        if (ok && left_) return next();
        Finish(grpc::Status::OK);
    }
    void OnDone() override { delete this; }

  private:
    void next() {
        const auto& chunk = warm_chunk();
        size_t size = std::min(left_, chunk.size());
        left_ -= size;
        grpc::Slice slice(chunk.data(), size, grpc::Slice::STATIC_SLICE);
        chunk_ = grpc::ByteBuffer(&slice, 1);
        StartWrite(&chunk_);
    }
    grpc::ByteBuffer request_, chunk_;
    uint64_t left_ = 0;
};

class Service : public grpc::CallbackGenericService {
    grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override { return new Reply; }
};

void serve(const Options& options, std::function<void(int)> tell) {
    auto credentials = grpc::InsecureServerCredentials();
    if (options.tls) {
        grpc::SslServerCredentialsOptions ssl;
        ssl.pem_key_cert_pairs.push_back({file_text(options.key), file_text(options.certificate)});
        credentials = grpc::SslServerCredentials(ssl);
    }
    Service service;
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port);
    builder.RegisterCallbackGenericService(&service);
    auto server = builder.BuildAndStart();
    tell(port);
    server->Wait();
}

struct GrpcClient : Client {
    std::unique_ptr<grpc::GenericStub> stub;
    grpc::CompletionQueue queue;

    GrpcClient(const Options& options, int port) {
        auto credentials = grpc::InsecureChannelCredentials();
        if (options.tls) credentials = grpc::SslCredentials({file_text(options.certificate), "", ""});
        grpc::ChannelArguments arguments;
        arguments.SetMaxReceiveMessageSize(-1);
        auto channel = grpc::CreateCustomChannel("localhost:" + std::to_string(port), credentials, arguments);
        stub = std::make_unique<grpc::GenericStub>(channel);
    }
    bool wait() {
        void* tag;
        bool ok = false;
        queue.Next(&tag, &ok);
        return ok;
    }
    void fetch(size_t bytes, uint8_t* out) override {
        grpc::ClientContext context;
        auto call = stub->PrepareCall(&context, "/data/Fetch", &queue);
        call->StartCall(this);
        wait();
        uint64_t size = bytes;
        grpc::Slice slice(&size, sizeof size);
        call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), this);
        wait();
        size_t done = 0;
        while (true) {
            grpc::ByteBuffer chunk;
            call->Read(&chunk, this);
            if (!wait()) break;
            std::vector<grpc::Slice> slices;
            (void)chunk.Dump(&slices);
            for (const auto& each : slices) {
                if (done + each.size() > bytes) fail("more than was asked for");
                memcpy(out + done, each.begin(), each.size());
                done += each.size();
            }
        }
        grpc::Status status;
        call->Finish(&status, this);
        wait();
        if (!status.ok() || done != bytes) fail("fetch: " + status.error_message());
    }
};

}  // namespace

int main(int argc, char** argv) {
    return compare(argc, argv, "gRPC stream, C++", serve,
                   [](const Options& options, int port) { return std::make_unique<GrpcClient>(options, port); });
}
