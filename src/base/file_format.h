// FileFormat: guesses the format of a file from its first bytes. If a user passes a file of the wrong format, the error
// message can then name its format. A pure function; may be called from any thread.
#pragma once

#include <cstdint>
#include <string_view>

namespace tutti {

enum class FileFormat : std::uint8_t {
  kUnknown,
  kMscclAlgorithm,  // XML: a collective algorithm of MSCCL
  kMscclppPlan,     // JSON: an execution plan of MSCCL++
  kNcclGraphs,      // XML: rings and trees of NCCL (NCCL_GRAPH_FILE)
  kNcclTopology,    // XML: the topology of a machine in NCCL's format
  kHwlocTopology,   // XML: the topology of a machine from hwloc (lstopo)
  kXml,             // other XML
  kJsonAlgorithm,   // JSON: a collective algorithm in another format
  kTuttiPlan,       // JSON: a plan of Tutti (docs/plan-json.md)
  kJson,            // other JSON
};

// Skips a UTF-8 byte order mark and leading white space, and examines the next 4,096 bytes.
FileFormat file_format(std::string_view text);

}  // namespace tutti
