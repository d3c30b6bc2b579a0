// A plan as a Chakra execution trace (MLCommons), one file for each rank: what ASTRA-sim takes for a collective of the
// user's own. Pure functions.
//
// A file is a row of protobuf messages, each behind its length: GlobalMetadata, then a Node for each operation, with
// the schema of mlcommons/chakra, et_def.proto, version 0.0.4. Sends and receives are COMM_SEND_NODE and COMM_RECV_NODE
// with comm_size, comm_src, comm_dst and comm_tag, steps COMP_NODE with num_ops (additions) and tensor_size. The wire
// format is written by hand: three messages of a schema that may not change under its numbers do not pay for a
// generator in the build and a library on every machine that runs the tool. An empty message is written as one byte.
#pragma once

#include <string>

#include "plan/formats/operations.h"

namespace tutti {

std::string to_chakra(std::uint32_t rank, const std::vector<Operation>& operations);

}  // namespace tutti
