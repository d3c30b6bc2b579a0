// What the threads of one block of the evaluator share, in the GPU's shared memory, and what the tests break in it.
//
// Who may touch what between two block barriers stands in evaluate.h. Nothing here is initialised by the hardware.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/call.h"
#include "kernels/device/lines.h"
#include "kernels/device/program.h"
#include "kernels/device/wait.h"

namespace tutti::device {

// What the tests break on purpose; this is the evaluator as it should be.
struct Sound {
  static constexpr bool kBarrierBeforePost = true;  // all threads have moved before anything is handed over
  static constexpr bool kReleasesTail = true;       // data is visible before the counter that announces it
  static constexpr std::uint64_t kExtraCredits = 0;
  static constexpr bool kChecksBothFlags = true;  // of a line of LL
  static constexpr bool kRenewsLines = true;      // of LL, before a flag comes again
};

inline constexpr std::uint32_t kStepsAtOnce = 32;  // of the program in shared memory
inline constexpr std::uint32_t kRoutesAtOnce = 128;

// How one entry of the step at hand leaves.
struct Way {
  Carrier carrier;
  std::uint64_t bytes_offset;  // of kPublished: from the start of the window
  std::uint32_t window;
  std::uint32_t unused;
};

// What the threads of a block share.
struct Shared {
  Call call;
  PackedChannel channel;
  ChannelState state;
  Link links[kMaxPorts];
  PackedStep steps[kStepsAtOnce];
  Route routes[kRoutesAtOnce];
  const std::byte* sources[kMaxReceives + 1];
  std::byte* destinations[kMaxSends + 1];  // the sink, then the sends
  Stream source_streams[kMaxReceives + 1];
  Stream destination_streams[kMaxSends + 1];
  std::uint64_t received_bytes[kMaxReceives];
  Way ways[kMaxReceives + kMaxSends];  // by entry, so that an entry's thread alone uses it
  std::uint32_t delivered;             // the step's one operand stands in its sink already
  // Two words: a thread may be at the next part before the others have looked at this one's.
  Outcome prepared;
  Outcome moved;
  std::uint32_t channel_index;
};

}  // namespace tutti::device
