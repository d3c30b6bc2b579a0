#include "base/call_tag.h"

#include <fmt/format.h>

#include "base/collective_table.h"
#include "tutti/types.h"

namespace tutti {
namespace {

// Empty for kApplication.
std::string_view name_of(CallPurpose purpose) {
  switch (purpose) {
    case CallPurpose::kApplication: return "";
    case CallPurpose::kVote: return "the vote on a uniform call";
    case CallPurpose::kChecksumBarrier: return "the barrier of a call with a checksum";
    case CallPurpose::kChecksumSetUp: return "the set-up of the first call with a checksum";
    case CallPurpose::kSetUpRound: return "a round of set-up, for example in split()";
  }
  return "";
}

// Lists the arguments that the digest of such a call can cover, and the digest, for example "counts of blocks and plan
// with digest 0badcafe". If two digests differ, it is not known which of these arguments differ.
std::string describe_digest(const CallTag& tag) {
  const CollectiveKind kind{tag.kind};
  std::string what;
  const auto add = [&](std::string_view part) { what += fmt::format("{}{}", what.empty() ? "" : " and ", part); };
  if (const std::string_view purpose = name_of(purpose_of(tag)); !purpose.empty()) return std::string(purpose);
  const bool has_variant = row_of(kind).variable == VariableForm::kPlan;
  if (tag.digest == 0) return has_variant ? "blocks of equal length" : "an ordinary call";
  if (has_variant) add("counts of blocks");
  if (uses_callers_plan(tag)) add("plan");
  if (tag.type == kUserTag) add("reduction (its id, element_bytes and commutative)");
  return fmt::format("{}{}digest {:08x}", what, what.empty() ? "" : " with ", tag.digest);
}

}  // namespace

CallPurpose purpose_of(const CallTag& tag) {
  const CallPurpose purpose{tag.digest};
  return name_of(purpose).empty() ? CallPurpose::kApplication : purpose;
}

bool uses_callers_plan(const CallTag& tag) { return Algorithm{tag.algorithm} == Algorithm::kUser; }

CallArgument first_difference(const CallTag& a, const CallTag& b) {
  if (a.sequence != b.sequence) return CallArgument::kSequence;
  if (a.kind != b.kind) return CallArgument::kCollective;
  if (a.count != b.count) return CallArgument::kCount;
  if (a.type != b.type) return CallArgument::kType;
  if (a.op != b.op) return CallArgument::kOp;
  if (a.algorithm != b.algorithm) return CallArgument::kAlgorithm;
  if (a.root != b.root) return CallArgument::kRoot;
  if (a.digest != b.digest) return CallArgument::kDigest;
  if (a.tile_bytes != b.tile_bytes) return CallArgument::kTileBytes;
  return CallArgument::kNone;
}

std::string describe(const CallTag& tag) {
  const CollectiveKind kind{tag.kind};
  const std::string_view purpose = name_of(purpose_of(tag));
  std::string text = fmt::format("{}{}{} #{} (", purpose, purpose.empty() ? "" : ", ", to_string(kind), tag.sequence);
  if (row_of(kind).has_data) {
    text += fmt::format("{} {}, ", tag.count, tag.type == kUserTag ? "elements" : to_string(DataType{tag.type}));
  }
  if (reduces(kind) && row_of(kind).has_data) {
    text += fmt::format("{}, ", tag.op == kUserTag ? "the caller's reduction" : to_string(ReduceOp{tag.op}));
  }
  if (has_root(kind)) text += fmt::format("root {}, ", tag.root);
  return text + fmt::format("{})", to_string(Algorithm{tag.algorithm}));
}

std::string describe(const CallTag& tag, CallArgument argument) {
  switch (argument) {
    case CallArgument::kNone: return "nothing";
    case CallArgument::kSequence: return fmt::format("call number {}", tag.sequence);
    case CallArgument::kCollective: return fmt::format("collective {}", to_string(CollectiveKind{tag.kind}));
    case CallArgument::kCount: return fmt::format("count {}", tag.count);
    case CallArgument::kType:
      if (tag.type == kUserTag) return "a reduction of the caller's own";
      return fmt::format("type {}", to_string(DataType{tag.type}));
    case CallArgument::kOp:
      if (tag.op == kUserTag) return "a reduction of the caller's own";
      return fmt::format("operation {}", to_string(ReduceOp{tag.op}));
    case CallArgument::kAlgorithm:
      return fmt::format("algorithm {}{}", to_string(Algorithm{tag.algorithm}),
                         uses_callers_plan(tag) ? " (a plan given to use_plan())" : "");
    case CallArgument::kRoot: return fmt::format("root {}", tag.root);
    case CallArgument::kDigest: return describe_digest(tag);
    case CallArgument::kDescriptors: return "no free file descriptors";
    case CallArgument::kMappings: return "no further memory mappings";
    case CallArgument::kPermission: return "no permission to receive memory";
    case CallArgument::kTileBytes:
      return fmt::format("longest message {} bytes (TUTTI_SLOT_BYTES differs, or only some ranks name the algorithm)",
                         tag.tile_bytes);
  }
  return "unknown argument";
}

}  // namespace tutti
