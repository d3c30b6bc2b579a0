// Scenario: everything that a seed determines for a run: the ranks, the calls that they make, and the faults. It is
// a value type, and the same seed always gives the same scenario.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conformance/suite.h"
#include "transports/sim/sim_environment.h"

namespace tutti::faults {

// Harmful behaviour of a rank in its own calls.
enum class Misuse : std::uint8_t {
  kNone,
  kAbsent,    // makes no more calls, but does not leave
  kLeaves,    // destroys its communicator
  kAborts,    // calls abort()
  kMismatch,  // passes another count, in this call only
};

enum class Network : std::uint8_t {
  kMemory,  // SimTransport
  kTcp,     // the production code of transports/tcp over simulated sockets
};

// The actions of the survivors after their calls.
struct Ending {
  bool uniform = false;  // whether some of their calls are uniform
  // Call number n is uniform if n is a multiple of this. With 1 the communicator's option is kAll, otherwise kAsked.
  std::size_t uniform_every = 1;
  bool agrees = false;
  bool shrinks = false;
  // Indexed by rank: the lowest rank of the same machine. Inside a machine, datagrams go through SimExchange.
  std::vector<std::uint32_t> machines{};
  std::chrono::milliseconds patience{2000};

  // Whether the call with this index is uniform, and whether it has to ask for it.
  bool is_uniform(std::size_t call) const { return uniform && (call + 1) % uniform_every == 0; }
  bool asks(std::size_t call) const { return uniform_every > 1 && is_uniform(call); }
};

struct Scenario {
  std::uint64_t seed = 1;
  Network network = Network::kMemory;
  SimOptions sim;  // contains the faults
  std::vector<test::Case> calls;
  bool go_on = false;      // ranks continue with the next call after an error of one call only
  bool finalizes = false;  // ranks call finalize() at the end
  std::chrono::milliseconds timeout{2000};
  Misuse misuse = Misuse::kNone;
  std::uint32_t misuser = 0;
  std::size_t misused_call = 0;  // index into `calls`
  std::optional<Ending> ending;  // none: ranks end after their calls
};

// Measurements of a run of the same scenario without faults.
struct Extent {
  std::vector<std::uint64_t> steps;  // number of steps, indexed by rank
  // indexed by rank: the step at which its ending began; 0: it did not begin
  std::vector<std::uint64_t> ending_steps;
  std::int64_t end_ns = 0;
  bool operator==(const Extent&) const = default;
};

// Selects whether a scenario has an ending. The calls of a seed are the same with both values.
enum class EndingMode : std::uint8_t { kAfterCalls, kWithSurvivors };
Scenario draw_scenario(std::uint64_t seed, EndingMode ends);
// Adds faults to the scenario. In one seed of three, none of them is harmful.
void draw_faults(Scenario& scenario, const Extent& extent);
// Adds one fault during the ending of some rank, based on a run with the previous faults.
void draw_late_fault(Scenario& scenario, const Extent& extent);

// Returns whether a fault may make a call fail. The other faults can only delay it.
bool harms(const SimFault& fault, std::chrono::milliseconds timeout);
// Returns the longest time, in ns, for which all temporary faults together can hold up a rank.
std::int64_t delay_ns(const Scenario& scenario);

std::string describe(const Scenario& scenario);

}  // namespace tutti::faults
