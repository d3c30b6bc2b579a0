// Tests which rank an error of split() and shrink() names. The ranks have other numbers in the new communicator than in
// the parent, and the error must use those of the parent.
#include <sys/prctl.h>
#include <sys/resource.h>

#include <ostream>

#include "communicator/process_support.h"

namespace tutti::test {
namespace {

constexpr std::int32_t kSize = 4;
constexpr std::int32_t kVictim = 2;

// A rank of the new communicator fails, ends or stops in the middle of split() or shrink().
enum class Fault : std::uint8_t { kFails, kEnds, kStops };

// From now on this process cannot make shared memory, which it needs in the middle of split() and shrink(). The kernel
// then sends SIGXFSZ, which ends the process unless it is ignored or handled.
void forbid_shared_memory(Fault fault) {
  signal(SIGXFSZ, fault == Fault::kFails ? SIG_IGN : SIG_DFL);
  if (fault == Fault::kStops) signal(SIGXFSZ, [](int) { raise(SIGSTOP); });
  const rlimit none{.rlim_cur = 0, .rlim_max = 0};
  if (setrlimit(RLIMIT_FSIZE, &none) != 0) std::abort();
}

constexpr const char* kNotInTheCall = "this rank is not in the call";

// The victim is rank 1 of the new communicator of both calls.
Result<std::unique_ptr<Communicator>> split(Communicator& rank) { return rank.split(0, -rank.rank()); }
Result<std::unique_ptr<Communicator>> shrink(Communicator& rank) {
  const std::vector<std::int32_t> first = {0};
  if (rank.rank() == 0) return Error{ErrorCode::kInvalidArgument, ErrorScope::kCall, -1, kNotInTheCall};
  return rank.shrink(first);
}

struct Call {
  const char* name;
  Result<std::unique_ptr<Communicator>> (*run)(Communicator& rank);
  friend void PrintTo(const Call& call, std::ostream* out) { *out << call.name; }
};

class NamesAfterSplit : public testing::TestWithParam<Call> {
 protected:
  // Each rank makes the call in a process of its own. Those other than the victim must get an error that `is_right`.
  static void run(Fault fault, const std::function<bool(const Error&)>& is_right) {
    const std::uint16_t port = free_port();
    std::vector<pid_t> children;
    for (std::int32_t rank = 0; rank < kSize; ++rank) {
      children.push_back(start([=] {
        CommunicatorOptions options = job(rank, kSize, port);
        prctl(PR_SET_PDEATHSIG, SIGKILL);  // alarm() cannot end a stopped process
        if (fault == Fault::kStops) {
          options.setup_timeout = scaled(std::chrono::seconds(12));
          options.timeout = scaled(std::chrono::seconds(6));
        }
        auto parent = Communicator::create(options);
        if (!parent.ok()) {
          std::fprintf(stderr, "rank %d: %s\n", rank, to_string(parent.error()).c_str());
          return 2;
        }
        if (rank == kVictim) forbid_shared_memory(fault);
        const auto child = GetParam().run(**parent);
        if (child.ok()) return 3;
        const Error& error = child.error();
        if (rank == kVictim || error.message == kNotInTheCall || is_right(error)) return 0;
        std::fprintf(stderr, "rank %d: %s\n", rank, to_string(error).c_str());
        return 4;
      }));
    }
    for (std::int32_t rank = 0; rank < kSize; ++rank) {
      if (rank == kVictim) continue;
      EXPECT_EQ(status_of(children[static_cast<std::size_t>(rank)]), 0) << "rank " << rank;
    }
    if (fault == Fault::kStops) kill(children[kVictim], SIGKILL);
    const int expected = fault == Fault::kFails ? 0 : 128 + (fault == Fault::kEnds ? SIGXFSZ : SIGKILL);
    EXPECT_EQ(status_of(children[kVictim]), expected);
  }
};

const std::string kTranslated = "(rank 1 of the new communicator is rank 2 here)";

// The error comes from a round of the ranks of the new communicator.
TEST_P(NamesAfterSplit, ARankThatFailsIsNamedByItsNumberInTheParent) {
  run(Fault::kFails, [](const Error& error) {
    return error.code == ErrorCode::kSystem && error.rank == kVictim && error.message.ends_with(kTranslated);
  });
}

// The error comes from the parent, so it has the number of the parent already.
TEST_P(NamesAfterSplit, ARankThatEndsIsNamedByItsNumberInTheParent) {
  run(Fault::kEnds, [](const Error& error) {
    return error.code == ErrorCode::kPeerLost && error.rank == kVictim && !error.message.ends_with(kTranslated);
  });
}

TEST_P(NamesAfterSplit, ARankThatStopsIsNamedByItsNumberInTheParent) {
  run(Fault::kStops, [](const Error& error) {
    return error.code == ErrorCode::kTimeout && error.rank == kVictim && !error.message.ends_with(kTranslated);
  });
}

INSTANTIATE_TEST_SUITE_P(Calls, NamesAfterSplit, testing::Values(Call{"Split", split}, Call{"Shrink", shrink}),
                         [](const auto& call) { return std::string(call.param.name); });

}  // namespace
}  // namespace tutti::test
