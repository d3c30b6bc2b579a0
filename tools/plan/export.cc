#include "tools/plan/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "base/assert.h"
#include "plan/collective.h"
#include "plan/formats/chakra.h"
#include "plan/formats/goal.h"
#include "plan/formats/operations.h"
#include "tools/common/file.h"
#include "tools/common/messages.h"
#include "tools/perf/options.h"

namespace tutti::tool {
namespace {

Error invalid(std::string message) {
  return {.code = ErrorCode::kInvalidArgument, .scope = ErrorScope::kCall, .rank = -1, .message = std::move(message)};
}

// The number of blocks of the larger one of a rank's two buffers (those of the root, if there is one), at least 1.
// --bytes is the length of all these blocks together.
std::uint32_t most_blocks(const Collective& collective) {
  return std::max(
      {1u, input_blocks(collective, collective.root).count, output_blocks(collective, collective.root).count});
}

Status write_goal(const CallOperations& call, std::uint32_t ranks, const std::string& path) {
  std::string text = goal_header(ranks);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) text += to_goal(rank, call.of_rank(rank));
  return write_file(path, text);
}

Status write_chakra(const CallOperations& call, std::uint32_t ranks, const std::string& folder) {
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure) {
    return cannot_write(folder, failure.value());
  }
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    TUTTI_TRY(write_file(fmt::format("{}/plan.{}.et", folder, rank), to_chakra(rank, call.of_rank(rank))));
  }
  return {};
}

}  // namespace

void add_export_options(CLI::App& command, ExportOptions& options) {
  command.add_option("--goal", options.goal_path, "Write the plan as GOAL, for LogGOPSim; takes --bytes");
  command.add_option("--chakra", options.chakra_folder,
                     "Write the plan as Chakra traces, plan.RANK.et in this folder, for ASTRA-sim; takes --bytes");
  command.add_option("--bytes", options.bytes, "Length of the message, all blocks together: 8, 4K, 64M, 1G");
  command.add_option("--element-bytes", options.element_bytes, "Length of an element; default 4");
  command.add_option("--slot-bytes", options.slot_bytes, "Longest message of a connection; default 512K");
}

Status check_export(const ExportOptions& options) {
  if (!options.bytes.empty() && !parse_size(options.bytes)) {
    return wrong_option("--bytes", not_a_size(options.bytes));
  }
  const std::optional<std::uint64_t> element_bytes = parse_size(options.element_bytes);
  if (!element_bytes) return wrong_option("--element-bytes", not_a_size(options.element_bytes));
  if (*element_bytes == 0 || *element_bytes > 64) {
    return wrong_option("--element-bytes", not_a_number(options.element_bytes, 1, 64));
  }
  if (const auto slot_bytes = parse_slot_bytes(options.slot_bytes); !slot_bytes) return slot_bytes.error();
  if (!options.wanted()) {
    return options.bytes.empty() ? Status() : invalid("--bytes is for --goal and --chakra; a plan alone has no size");
  }
  if (options.bytes.empty()) return invalid("--goal and --chakra write a call of some size; give it with --bytes");
  return {};
}

Status export_plan(const Plan& plan, const ExportOptions& options) {
  if (!options.wanted()) return {};
  TUTTI_TRY(check_export(options));
  const std::uint64_t element_bytes = *parse_size(options.element_bytes);
  const std::uint32_t ranks = plan.shape.collective.ranks;
  const CallSize size{.count = *parse_size(options.bytes) / element_bytes / most_blocks(plan.shape.collective),
                      .element_bytes = element_bytes,
                      .max_message_bytes = *parse_size(options.slot_bytes)};
  const Result<CallOperations> call = CallOperations::create(plan, size);
  if (!call.ok()) return call.error();
  if (!options.goal_path.empty()) TUTTI_TRY(write_goal(*call, ranks, options.goal_path));
  if (!options.chakra_folder.empty()) TUTTI_TRY(write_chakra(*call, ranks, options.chakra_folder));
  return {};
}

}  // namespace tutti::tool
