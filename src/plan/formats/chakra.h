// Exports a plan as a Chakra execution trace (MLCommons), one file for each rank. ASTRA-sim accepts such files as
// the implementation of a custom collective. Pure functions.
//
// A file is a sequence of protobuf messages, and each message follows its length: first GlobalMetadata, then one
// Node for each operation. The schema is et_def.proto of mlcommons/chakra, version 0.0.4. Sends and receives are
// COMM_SEND_NODE and COMM_RECV_NODE with comm_size, comm_src, comm_dst and comm_tag. Steps are COMP_NODE with
// num_ops (additions) and tensor_size. The wire format is written by hand, because the schema has only three
// messages whose field numbers cannot change. That does not justify a protobuf compiler in the build, and a
// library on every machine that runs the tool. An empty message is written with a length of one byte.
#pragma once

#include <string>

#include "plan/formats/operations.h"

namespace tutti {

std::string to_chakra(std::uint32_t rank, const std::vector<Operation>& operations);

}  // namespace tutti
