// A minimal encoder of protobuf messages, and the conversion of operations to Chakra nodes.
#include "plan/formats/chakra.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace tutti {
namespace {

// A protobuf message. Each function encodes one field and appends it to the message.
class ProtobufMessage {
 public:
  ProtobufMessage& number(std::uint32_t field, std::uint64_t value) {
    varint(bytes_, std::uint64_t{field} << 3 | kVarint);
    varint(bytes_, value);
    return *this;
  }
  ProtobufMessage& text(std::uint32_t field, std::string_view value) {
    varint(bytes_, std::uint64_t{field} << 3 | kLength);
    varint(bytes_, value.size());
    bytes_ += value;
    return *this;
  }
  // Adds a packed repeated field: all values in one length-delimited field. Adds nothing if there are no values.
  ProtobufMessage& numbers(std::uint32_t field, const std::vector<std::uint32_t>& values) {
    if (values.empty()) return *this;
    std::string packed;
    for (const std::uint32_t value : values) varint(packed, value);
    return text(field, packed);
  }
  ProtobufMessage& message(std::uint32_t field, const ProtobufMessage& value) { return text(field, value.bytes_); }

  // Appends this message, preceded by its length in bytes, to `file`, a sequence of such messages.
  void append_to(std::string& file) const {
    varint(file, bytes_.size());
    file += bytes_;
  }

 private:
  static constexpr std::uint64_t kVarint = 0;
  static constexpr std::uint64_t kLength = 2;

  static void varint(std::string& out, std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7f) | 0x80);
    out += static_cast<char>(value);
  }
  std::string bytes_;
};

// Field numbers of the messages in et_def.proto (Chakra's schema), and, in the last line, values of its
// enumeration NodeType.
constexpr std::uint32_t kMetadataVersion = 1;
constexpr std::uint32_t kNodeId = 1, kNodeName = 2, kNodeType = 3, kNodeDataDeps = 5, kNodeAttr = 10;
constexpr std::uint32_t kAttrName = 1, kAttrInt32 = 7, kAttrInt64 = 9, kAttrUint64 = 13, kAttrBool = 27;
constexpr std::uint64_t kComp = 4, kCommSend = 5, kCommRecv = 6;

void add_attribute(ProtobufMessage& node, std::string_view name, std::uint32_t type, std::uint64_t value) {
  node.message(kNodeAttr, ProtobufMessage().text(kAttrName, name).number(type, value));
}

ProtobufMessage node_of(std::uint32_t rank, std::uint32_t id, const Operation& operation) {
  const bool sends = operation.kind == OperationKind::kSend;
  ProtobufMessage node;
  node.number(kNodeId, id);
  if (operation.kind == OperationKind::kStep) {
    node.text(kNodeName, fmt::format("step {}", id)).number(kNodeType, kComp);
    node.numbers(kNodeDataDeps, operation.after);
    add_attribute(node, "is_cpu_op", kAttrBool, 0);
    add_attribute(node, "num_ops", kAttrInt64, operation.additions);
    add_attribute(node, "tensor_size", kAttrUint64, operation.bytes);
    return node;
  }
  node.text(kNodeName, fmt::format("{} {} tag {}", sends ? "send to" : "receive from", operation.peer, operation.tag));
  node.number(kNodeType, sends ? kCommSend : kCommRecv).numbers(kNodeDataDeps, operation.after);
  add_attribute(node, "is_cpu_op", kAttrBool, 0);
  add_attribute(node, "comm_size", kAttrInt64, std::max<std::uint64_t>(operation.bytes, 1));
  add_attribute(node, "comm_src", kAttrInt32, sends ? rank : operation.peer);
  add_attribute(node, "comm_dst", kAttrInt32, sends ? operation.peer : rank);
  add_attribute(node, "comm_tag", kAttrInt32, operation.tag);
  return node;
}

}  // namespace

std::string to_chakra(std::uint32_t rank, const std::vector<Operation>& operations) {
  std::string file;
  ProtobufMessage().text(kMetadataVersion, "0.0.4").append_to(file);
  for (std::size_t i = 0; i < operations.size(); ++i) {
    node_of(rank, static_cast<std::uint32_t>(i), operations[i]).append_to(file);
  }
  return file;
}

}  // namespace tutti
