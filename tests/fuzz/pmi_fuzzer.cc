// Fuzzes the answers of a launcher (bootstrap/pmi.h), over a real socket. For any answers, the client must end with
// a value or with an error that has a message.
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/pmi.h"
#include "support.h"

namespace {

using namespace tutti;
using fuzz::demand;

void talk(PmiClient& client) {
  for (int round = 0; round < 8; ++round) {
    const auto value = client.get("key");
    if (!value) return demand(!value.error().message.empty(), "an error has a message and a known code");
    if (*value) demand((*value)->size() < PmiClient::kMaxLineBytes, "values are not longer than the limit");
    if (const Status put = client.put("key", "value"); !put.ok()) {
      demand(!put.error().message.empty(), "an error has a message and a known code");
    }
    if (!client.barrier().ok()) return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kMostBytes = 16384;  // fits into the socket buffer
  int ends[2] = {-1, -1};
  demand(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "a socket pair can be created");
  const std::size_t said = std::min(size, kMostBytes);
  demand(write(ends[1], data, said) == static_cast<ssize_t>(said), "the answers are written");
  shutdown(ends[1], SHUT_WR);
  auto client = PmiClient::open(ends[0], std::chrono::steady_clock::now() + std::chrono::seconds(5));
  if (client) {
    talk(*client);
  } else {
    demand(!client.error().message.empty(), "an error has a message and a known code");
  }
  close(ends[0]);
  close(ends[1]);
  return 0;
}
