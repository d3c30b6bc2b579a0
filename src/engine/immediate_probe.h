// ImmediateProbe: checks for a message or for a live receiver without waiting for either. It may wait for another
// thread to give up the driver's role. The thread that calls it drives the engine during the check, so that it can open
// connections. The class has no threads or locks of its own; its functions lock the engine's mutex. Any thread may use
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/engine_state.h"
#include "executor/exchange.h"
#include "tutti/result.h"

namespace tutti {

class ImmediateProbe {
 public:
  // All arguments must outlive this object.
  ImmediateProbe(const EngineContext& context, EngineState& state) : context_(context), state_(state) {}

  // See Engine::look_for_message() and Engine::look_at_receiver().
  Result<std::optional<std::uint32_t>> look_for_message(std::vector<Transfer> probes);
  Result<bool> look_at_receiver(Transfer send);

 private:
  const EngineContext& context_;
  EngineState& state_;
};

}  // namespace tutti
