// The server by TLS: replies, certificates that are replaced while it runs, peers that speak none.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "serve/testing/certificate.h"

namespace octet::serve {
namespace {

int connect_to(int port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket, reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
  return socket;
}

// The serial number of the server's certificate, and what it answers.
std::pair<long, std::string> ask(int port, const std::string& bytes) {
  const std::unique_ptr<SSL_CTX, Free<SSL_CTX_free>> context(SSL_CTX_new(TLS_client_method()));
  const std::unique_ptr<SSL, Free<SSL_free>> tls(SSL_new(context.get()));
  const int socket = connect_to(port);
  SSL_set_fd(tls.get(), socket);
  EXPECT_EQ(SSL_connect(tls.get()), 1);
  const std::unique_ptr<X509, Free<X509_free>> cert(SSL_get1_peer_certificate(tls.get()));
  SSL_write(tls.get(), bytes.data(), static_cast<int>(bytes.size()));
  std::string text;
  char block[4096];
  for (int count = 1; (count = SSL_read(tls.get(), block, sizeof(block))) > 0;)
    text.append(block, static_cast<size_t>(count));
  ::close(socket);
  return {cert ? ASN1_INTEGER_get(X509_get0_serialNumber(cert.get())) : -1, text};
}

TEST(HttpTls, AnswersAndTakesANewCertificate) {
  const std::string folder = testing::TempDir() + "/octet_tls_" + std::to_string(::getpid());
  make_folders(folder);
  const HttpOptions options = write_certificate(folder, "a", 7);
  HttpServer server(options, [](const HttpRequest& request, HttpReply reply) {
    reply.send(200, "text/plain", request.secure ? "secure" : "plain");
  });
  const std::string request = "GET / HTTP/1.1\r\nConnection: close\r\n\r\n";
  const auto [serial, text] = ask(server.port(), request);
  EXPECT_EQ(serial, 7);
  EXPECT_TRUE(text.ends_with("\r\n\r\nsecure")) << text;

  write_certificate(folder, "a", 8);
  EXPECT_EQ(ask(server.port(), request).first, 7);
  server.reload_certificate();
  EXPECT_EQ(ask(server.port(), request).first, 8);

  const HttpOptions other = write_certificate(folder, "b", 9);
  write_file(options.private_key, read_file(other.private_key));
  try {
    server.reload_certificate();
    FAIL() << "a key of another certificate";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("a.key"), std::string::npos) << error.message();
  }
  EXPECT_EQ(ask(server.port(), request).first, 8);

  const int plain = connect_to(server.port());
  ::send(plain, request.data(), request.size(), MSG_NOSIGNAL);
  char block[64];
  while (::recv(plain, block, sizeof(block), 0) > 0) {
  }
  ::close(plain);
  EXPECT_TRUE(ask(server.port(), request).second.ends_with("secure"));
  remove_path(folder);
}

}  // namespace
}  // namespace octet::serve
