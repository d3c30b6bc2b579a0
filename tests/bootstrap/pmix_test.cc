// Tests the PMIx client with a fake library in which one function hangs.
#include "bootstrap/pmix.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>

#include "tests/support/patience.h"

namespace tutti {
namespace {

enum Outcome : int { kShared = 0, kNoLibrary = 10, kOtherText = 11, kTimedOut = 12, kOtherError = 13, kAgain = 14 };

// Runs `body`, which ends the process, in a process of its own, because the library is loaded only once for each
// process. Passes the loaded library. Returns 15 if the process did not end.
int outcome_of(const std::function<void(void* library)>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(static_cast<unsigned>(test::patience().count() / 1000));
    // a later dlopen() finds this library by its name
    void* const library = dlopen(TUTTI_FAKE_PMIX, RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) _exit(kNoLibrary);
    body(library);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 15;
}

int outcome_when_hanging(const std::string& call) {
  return outcome_of([&](void*) {
    setenv("FAKE_PMIX_HANGS", call.c_str(), 1);
    const auto share = [] {
      return share_through_pmix(
          0, []() -> Result<std::string> { return std::string("an id"); },
          std::chrono::steady_clock::now() + test::scaled(std::chrono::milliseconds(500)));
    };
    const auto text = share();
    if (text.ok()) std::exit(*text == "an id" ? kShared : kOtherText);
    if (text.error().code != ErrorCode::kTimeout) _exit(kOtherError);
    _exit(share().ok() ? kAgain : kTimedOut);
  });
}

TEST(Pmix, AnIdIsShared) { EXPECT_EQ(outcome_when_hanging("nothing"), kShared); }

TEST(Pmix, ACallThatHangsEndsAtTheDeadline) {
  for (const char* call : {"PMIx_Init", "PMIx_Put", "PMIx_Commit"}) {
    EXPECT_EQ(outcome_when_hanging(call), kTimedOut) << call;
  }
}

// PMIx_Finalize() is given 3 s, because the launcher regards a rank that exits without calling it as crashed.
TEST(Pmix, AGoodbyeThatHangsDoesNotHoldTheProcess) { EXPECT_EQ(outcome_when_hanging("PMIx_Finalize"), kShared); }

// The fake library has one store, so the process can be first rank 0 and then rank 1. Rank 0 must take part in the
// barrier although it has no id, because the others wait there.
TEST(Pmix, AnIdThatRank0CannotMakeFailsAllAtOnce) {
  const int outcome = outcome_of([](void* library) {
    const auto* const fences = static_cast<const int*>(dlsym(library, "fake_pmix_fences"));
    const auto share = [](std::int32_t rank) {
      return share_through_pmix(
          rank,
          []() -> Result<std::string> {
            return Error{ErrorCode::kConfig, ErrorScope::kCall, -1, "no address"};
          },
          std::chrono::steady_clock::now() + test::patience());
    };
    EXPECT_EQ(share(0).error().message, "no address");
    EXPECT_EQ(*fences, 1);
    const auto other = share(1);
    EXPECT_FALSE(other.ok());
    EXPECT_EQ(other.error().rank, 0);
    EXPECT_EQ(other.error().code, ErrorCode::kSystem);
    std::exit(testing::Test::HasFailure() ? kOtherError : kShared);
  });
  EXPECT_EQ(outcome, kShared);
}

}  // namespace
}  // namespace tutti
