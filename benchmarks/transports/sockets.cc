// Plain sockets and OpenSSL: bytes go from the sender's memory to the slot with no message format but a size.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include "harness.h"

namespace {

struct Stream {
    int fd;
    SSL* ssl = nullptr;

    void send_all(const uint8_t* data, size_t size) const {
        for (size_t done = 0; done < size;) {
            ssize_t n = ssl ? SSL_write(ssl, data + done, int(size - done)) : send(fd, data + done, size - done, MSG_NOSIGNAL);
            if (n <= 0) fail("send");
            done += n;
        }
    }
    void flush() const {
        if (ssl && BIO_flush(SSL_get_wbio(ssl)) != 1) fail("flush");
    }
    // Records of 16 KiB are written and read many at a time.
    void encrypt(SSL_CTX* context) {
        SSL_CTX_set_read_ahead(context, 1);
        SSL_CTX_set_default_read_buffer_len(context, size_t(256) << 10);
        ssl = SSL_new(context);
        BIO* buffer = BIO_new(BIO_f_buffer());
        BIO_set_write_buffer_size(buffer, 256 << 10);
        BIO* bio = BIO_new_socket(fd, BIO_NOCLOSE);
        SSL_set0_rbio(ssl, bio);
        BIO_up_ref(bio);
        SSL_set0_wbio(ssl, BIO_push(buffer, bio));
    }
    void receive_all(uint8_t* out, size_t size) const {
        for (size_t done = 0; done < size;) {
            ssize_t n = ssl ? SSL_read(ssl, out + done, int(std::min(size - done, size_t(1) << 30)))
                            : recv(fd, out + done, std::min(size - done, size_t(256) << 10), MSG_WAITALL);
            if (n <= 0) fail("receive");
            done += n;
        }
    }
};

void no_delay(int fd) {
    int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

void serve(const Options& options, std::function<void(int)> tell) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{AF_INET, 0, {htonl(INADDR_LOOPBACK)}, {}};
    socklen_t size = sizeof address;
    if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) || listen(listener, 8)) fail("listen");
    getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
    tell(ntohs(address.sin_port));
    Stream stream{accept(listener, nullptr, nullptr)};
    no_delay(stream.fd);
    if (options.tls) {
        SSL_CTX* context = SSL_CTX_new(TLS_server_method());
        SSL_CTX_use_certificate_chain_file(context, options.certificate.c_str());
        SSL_CTX_use_PrivateKey_file(context, options.key.c_str(), SSL_FILETYPE_PEM);
        stream.encrypt(context);
        if (SSL_accept(stream.ssl) != 1) fail("handshake");
    }
    const auto& chunk = warm_chunk();
    while (true) {
        uint64_t left;
        stream.receive_all(reinterpret_cast<uint8_t*>(&left), sizeof left);
        for (; left; left -= std::min(left, chunk.size())) stream.send_all(chunk.data(), std::min(left, chunk.size()));
        stream.flush();
    }
}

struct SocketClient : Client {
    Stream stream{socket(AF_INET, SOCK_STREAM, 0)};

    SocketClient(const Options& options, int port) {
        sockaddr_in address{AF_INET, htons(port), {htonl(INADDR_LOOPBACK)}, {}};
        if (::connect(stream.fd, reinterpret_cast<sockaddr*>(&address), sizeof address)) fail("connect");
        no_delay(stream.fd);
        if (!options.tls) return;
        SSL_CTX* context = SSL_CTX_new(TLS_client_method());
        SSL_CTX_load_verify_locations(context, options.certificate.c_str(), nullptr);
        SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
        SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256");
        stream.encrypt(context);
        SSL_set1_host(stream.ssl, "localhost");
        if (SSL_connect(stream.ssl) != 1) fail("handshake");
    }
    void fetch(size_t bytes, uint8_t* out) override {
        uint64_t size = bytes;
        stream.send_all(reinterpret_cast<const uint8_t*>(&size), sizeof size);
        stream.flush();
        stream.receive_all(out, bytes);
    }
};

}  // namespace

int main(int argc, char** argv) {
    return compare(argc, argv, "sockets", serve,
                   [](const Options& options, int port) { return std::make_unique<SocketClient>(options, port); });
}
