// Exports a plan as a Chakra execution trace (MLCommons), one file for each rank. The network simulator ASTRA-sim
// accepts such files as the implementation of a custom collective. Pure functions.
//
// A file is a sequence of protobuf messages, each preceded by its length: first one GlobalMetadata, then one Node
// for each operation. The schema is et_def.proto of mlcommons/chakra, version 0.0.4. Sends and receives are
// written as COMM_SEND_NODE and COMM_RECV_NODE with comm_size, comm_src, comm_dst and comm_tag. Steps are written
// as COMP_NODE with num_ops (number of additions) and tensor_size. The protobuf encoding is written by hand: only
// three protobuf messages are needed, and their field numbers cannot change, so a protobuf compiler in the build
// and a library on every machine that runs the tool would not be justified. A message of the collective without
// bytes gets a comm_size of 1, because receivers wait for it, too.
#pragma once

#include <string>

#include "plan/formats/operations.h"

namespace tutti {

// Returns the file of `rank`. `operations` is CallOperations::of_rank(rank).
std::string to_chakra(std::uint32_t rank, const std::vector<Operation>& operations);

}  // namespace tutti
