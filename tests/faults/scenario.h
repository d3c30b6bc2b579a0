// Scenario: what one seed makes of a run: ranks, the calls that they make, and what goes wrong. A value; the same seed
// gives the same one.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conformance/suite.h"
#include "transports/sim/sim_environment.h"

namespace tutti::faults {

// What a rank does to the others by its own calls.
enum class Misuse : std::uint8_t {
  kNone,
  kAbsent,    // makes no more calls, and stays
  kLeaves,    // destroys its communicator
  kAborts,    // calls abort()
  kMismatch,  // passes another count, in this call only
};

enum class Network : std::uint8_t {
  kMemory,  // SimTransport
  kTcp,     // the production code of transports/tcp over simulated sockets
};

// What the survivors do after their calls.
struct Ending {
  bool uniform = false;  // the mode of all their calls
  bool agrees = false;
  bool shrinks = false;
  std::vector<std::uint32_t> machines{};  // by rank: the lowest rank of the same one; datagrams go by exchange inside
  std::chrono::milliseconds patience{2000};
};

struct Scenario {
  std::uint64_t seed = 1;
  Network network = Network::kMemory;
  SimOptions sim;  // with the faults
  std::vector<test::Case> calls;
  bool go_on = false;      // ranks go on with the next call after an error that costs one call only
  bool finalizes = false;  // they call finalize() at the end
  std::chrono::milliseconds timeout{2000};
  Misuse misuse = Misuse::kNone;
  std::uint32_t misuser = 0;
  std::size_t misused_call = 0;  // index into `calls`
  std::optional<Ending> ending;  // none: after their calls ranks end
};

// What was counted in a run of the same scenario without faults.
struct Extent {
  std::vector<std::uint64_t> steps;         // by rank
  std::vector<std::uint64_t> ending_steps;  // likewise: when its ending began; 0: it did not
  std::int64_t end_ns = 0;
  bool operator==(const Extent&) const = default;
};

// Without faults. With an ending the same calls.
enum class Ends : std::uint8_t { kAfterCalls, kWithSurvivors };
Scenario draw_scenario(std::uint64_t seed, Ends ends);
// Gives it faults: none that matters in one seed of three.
void draw_faults(Scenario& scenario, const Extent& extent);
// One more, in the midst of the ending of some rank, as it was in a run with the faults so far.
void draw_late_fault(Scenario& scenario, const Extent& extent);

// Whether a fault may cost a call; the others may only delay it.
bool harms(const SimFault& fault, std::chrono::milliseconds timeout);
// The longest that the faults that end hold up a rank, all together.
std::int64_t delay_ns(const Scenario& scenario);

std::string describe(const Scenario& scenario);

}  // namespace tutti::faults
