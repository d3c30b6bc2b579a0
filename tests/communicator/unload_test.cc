// Tests that a program may close the libraries with dlclose() at any time, although threads of the library still
// run. This happens, for example, when a plugin that uses them is unloaded.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "nccl.h"
#include "tests/support/patience.h"
#include "tutti/unique_id.h"

namespace tutti::test {
namespace {

using Id = std::array<unsigned char, 128>;

// Exit statuses of the child.
enum Outcome : int { kFine = 0, kNotOpened = 3, kNoId = 4, kNotListening = 5, kNotAnswered = 6 };

// Sends garbage to the server of a unique id and waits for its refusal, which the server's thread sends.
Outcome ask_server_of(const Id& id) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  std::uint16_t port = 0;
  std::memcpy(&port, id.data() + 10, sizeof(port));  // format: src/bootstrap/unique_id_parts.h
  to.sin_port = htons(port);
  std::memcpy(&to.sin_addr, id.data() + 12, sizeof(to.sin_addr));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) return kNotListening;
  if (send(fd, "xxxxxxxxxxxxxxxx", 16, MSG_NOSIGNAL) != 16) return kNotListening;
  pollfd answer{.fd = fd, .events = POLLIN, .revents = 0};
  const int limit_ms = static_cast<int>(patience().count());
  return poll(&answer, 1, limit_ms) == 1 ? kFine : kNotAnswered;
}

// Opens a library, makes a unique id with it and closes it. Then it connects to the server of the id, which is a
// thread of the closed library.
template <class MakeId>
int use_and_close(const char* library, const char* function, MakeId make_id) {
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return kNotOpened;
  Id id{};
  void* const address = dlsym(handle, function);
  if (address == nullptr || !make_id(address, id)) return kNoId;
  dlclose(handle);
  return ask_server_of(id);
}

// Runs body() in a child process. Returns its outcome, or 128 plus the signal that killed it.
template <class Body>
int in_child(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(static_cast<unsigned>(2 * patience() / std::chrono::seconds(1)));
    _exit(body());
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(Unload, TheServerOfAUniqueIdSurvivesTheEndOfLibtutti) {
  const auto make_id = [](void* address, Id& id) {
    const auto create = reinterpret_cast<Result<UniqueId> (*)(const UniqueIdOptions&)>(address);
    const auto made = create({.interface = "lo"});
    if (made.ok()) std::memcpy(id.data(), made->bytes.data(), id.size());
    return made.ok();
  };
  const char* const function = "_ZN5tutti8UniqueId6createERKNS_15UniqueIdOptionsE";
  EXPECT_EQ(in_child([&] { return use_and_close(TUTTI_LIBRARY, function, make_id); }), kFine);
}

TEST(Unload, TheServerOfAUniqueIdSurvivesTheEndOfLibnccl) {
  const auto make_id = [](void* address, Id& id) {
    ncclUniqueId made{};
    const bool ok = reinterpret_cast<ncclResult_t (*)(ncclUniqueId*)>(address)(&made) == ncclSuccess;
    std::memcpy(id.data(), &made, id.size());
    return ok;
  };
  const int outcome = in_child([&] {
    setenv("TUTTI_INTERFACE", "lo", 1);
    return use_and_close(TUTTI_NCCL_LIBRARY, "ncclGetUniqueId", make_id);
  });
  EXPECT_EQ(outcome, kFine);
}

}  // namespace
}  // namespace tutti::test
