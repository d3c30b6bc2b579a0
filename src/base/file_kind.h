// What a file is that was given in place of another one, told by how it begins. For messages. Pure; any thread.
#pragma once

#include <cstdint>
#include <string_view>

namespace tutti {

enum class FileKind : std::uint8_t {
  kUnknown,
  kMscclAlgorithm,  // a collective algorithm of MSCCL, XML
  kMscclppPlan,     // an execution plan of MSCCL++, JSON
  kNcclGraphs,      // rings and trees of NCCL (NCCL_GRAPH_FILE), XML
  kNcclTopology,    // a machine, in NCCL's format, XML
  kHwlocTopology,   // a machine, by hwloc (lstopo), XML
  kXml,             // other XML
  kJsonAlgorithm,   // another collective algorithm in JSON
  kTuttiPlan,       // docs/plan-json.md
  kJson,            // other JSON
};

// Looks at the first 4,096 bytes behind white space and a mark of UTF-8.
FileKind file_kind(std::string_view text);

}  // namespace tutti
