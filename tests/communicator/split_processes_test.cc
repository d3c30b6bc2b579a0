// Tests which rank an error of split() and shrink() names. The ranks have other numbers in the new communicator than in
// the parent, and the error must use those of the parent.
#include <sys/resource.h>

#include <ostream>

#include "communicator/process_support.h"

namespace tutti::test {
namespace {

constexpr std::int32_t kSize = 4;
constexpr std::int32_t kVictim = 2;

// From now on this process cannot make shared memory, in the middle of split() or shrink(). The kernel sends SIGXFSZ,
// which ends the process unless it is ignored.
void forbid_shared_memory(bool survives) {
  signal(SIGXFSZ, survives ? SIG_IGN : SIG_DFL);
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
  static void run(bool survives, const std::function<bool(const Error&)>& is_right) {
    const std::uint16_t port = free_port();
    std::vector<pid_t> children;
    for (std::int32_t rank = 0; rank < kSize; ++rank) {
      children.push_back(start([=] {
        auto parent = Communicator::create(job(rank, kSize, port));
        if (!parent.ok()) return 2;
        if (rank == kVictim) forbid_shared_memory(survives);
        const auto child = GetParam().run(**parent);
        if (child.ok()) return 3;
        const Error& error = child.error();
        if (rank == kVictim || error.message == kNotInTheCall || is_right(error)) return 0;
        std::fprintf(stderr, "rank %d: %s\n", rank, to_string(error).c_str());
        return 4;
      }));
    }
    for (std::int32_t rank = 0; rank < kSize; ++rank) {
      const int expected = rank == kVictim && !survives ? 128 + SIGXFSZ : 0;
      EXPECT_EQ(status_of(children[static_cast<std::size_t>(rank)]), expected) << "rank " << rank;
    }
  }
};

const std::string kTranslated = "(rank 1 of the new communicator is rank 2 here)";

// The error comes from a round of the ranks of the new communicator.
TEST_P(NamesAfterSplit, ARankThatFailsIsNamedByItsNumberInTheParent) {
  run(true, [](const Error& error) {
    return error.code == ErrorCode::kSystem && error.rank == kVictim && error.message.ends_with(kTranslated);
  });
}

// The error comes from the parent, so it has the number of the parent already.
TEST_P(NamesAfterSplit, ARankThatEndsIsNamedByItsNumberInTheParent) {
  run(false, [](const Error& error) {
    return error.code == ErrorCode::kPeerLost && error.rank == kVictim && !error.message.ends_with(kTranslated);
  });
}

INSTANTIATE_TEST_SUITE_P(Calls, NamesAfterSplit, testing::Values(Call{"Split", split}, Call{"Shrink", shrink}),
                         [](const auto& call) { return std::string(call.param.name); });

}  // namespace
}  // namespace tutti::test
