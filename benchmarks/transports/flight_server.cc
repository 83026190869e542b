// Arrow Flight written against Arrow's C++ library on both sides, no Python: what the language costs, and what it does not.
#include <arrow/api.h>
#include <arrow/flight/api.h>

#include "harness.h"

namespace flight = arrow::flight;

namespace {

auto schema() { return arrow::schema({arrow::field("bytes", arrow::uint8(), false)}); }

class Chunks : public arrow::RecordBatchReader {
  public:
    explicit Chunks(uint64_t left) : left_(left) {}
    std::shared_ptr<arrow::Schema> schema() const override { return ::schema(); }
    arrow::Status ReadNext(std::shared_ptr<arrow::RecordBatch>* out) override {
        int64_t size = std::min(left_, warm_chunk().size());
        left_ -= size;
        auto buffer = std::make_shared<arrow::Buffer>(warm_chunk().data(), size);
        *out = size ? arrow::RecordBatch::Make(schema(), size, {std::make_shared<arrow::UInt8Array>(size, buffer)}) : nullptr;
        return arrow::Status::OK();
    }

  private:
    uint64_t left_;
};

class Server : public flight::FlightServerBase {
    arrow::Status DoGet(const flight::ServerCallContext&, const flight::Ticket& ticket,
                        std::unique_ptr<flight::FlightDataStream>* stream) override {
        uint64_t size;
        memcpy(&size, ticket.ticket.data(), sizeof size);
        *stream = std::make_unique<flight::RecordBatchStream>(std::make_shared<Chunks>(size));
        return arrow::Status::OK();
    }
};

void serve(const Options& options, std::function<void(int)> tell) {
    auto place = options.tls ? flight::Location::ForGrpcTls("127.0.0.1", 0) : flight::Location::ForGrpcTcp("127.0.0.1", 0);
    flight::FlightServerOptions settings(*place);
    if (options.tls) settings.tls_certificates.push_back({file_text(options.certificate), file_text(options.key)});
    Server server;
    if (!server.Init(settings).ok()) fail("Flight");
    tell(server.port());
    (void)server.Serve();
}

struct FlightClient : Client {
    std::unique_ptr<flight::FlightClient> client;

    FlightClient(const Options& options, int port) {
        auto settings = flight::FlightClientOptions::Defaults();
        if (options.tls) settings.tls_root_certs = file_text(options.certificate);
        auto place = options.tls ? flight::Location::ForGrpcTls("localhost", port) : flight::Location::ForGrpcTcp("localhost", port);
        client = *flight::FlightClient::Connect(*place, settings);
    }
    void fetch(size_t bytes, uint8_t* out) override {
        uint64_t size = bytes;
        auto reader = client->DoGet(flight::Ticket{std::string(reinterpret_cast<char*>(&size), sizeof size)});
        if (!reader.ok()) fail(reader.status().ToString());
        size_t done = 0;
        while (true) {
            auto chunk = (*reader)->Next();
            if (!chunk.ok()) fail(chunk.status().ToString());
            if (!chunk->data) break;
            const auto& buffer = chunk->data->column_data(0)->buffers[1];
            memcpy(out + done, buffer->data(), chunk->data->num_rows());
            done += chunk->data->num_rows();
        }
        if (done != bytes) fail("fetch");
    }
};

}  // namespace

int main(int argc, char** argv) {
    return compare(argc, argv, "Flight, C++", serve,
                   [](const Options& options, int port) { return std::make_unique<FlightClient>(options, port); });
}
