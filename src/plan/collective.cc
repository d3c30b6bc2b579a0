#include "plan/collective.h"

namespace tutti {
namespace {

using Kind = CollectiveKind;

Blocks own_block(std::uint32_t rank) { return {.count = 1, .first = rank}; }
Blocks blocks_of_all(const Collective& collective) { return {.count = collective.ranks, .first = 0}; }

}  // namespace

bool reduces(CollectiveKind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter || kind == Kind::kBarrier;
}

bool has_root(CollectiveKind kind) {
  return kind == Kind::kBroadcast || kind == Kind::kReduce || kind == Kind::kGather || kind == Kind::kScatter;
}

Blocks input_blocks(const Collective& collective, std::uint32_t rank) {
  const bool root = rank == collective.root;
  switch (collective.kind) {
    case Kind::kAllReduce:
    case Kind::kReduce:
    case Kind::kBarrier: return {.count = 1, .first = 0};
    case Kind::kBroadcast: return {.count = root ? 1u : 0u, .first = 0};
    case Kind::kAllGather:
    case Kind::kGather: return own_block(rank);
    case Kind::kReduceScatter:
    case Kind::kAllToAll: return blocks_of_all(collective);
    case Kind::kScatter: return root ? blocks_of_all(collective) : Blocks{};
    case Kind::kSendReceive: break;
  }
  return {};
}

Blocks output_blocks(const Collective& collective, std::uint32_t rank) {
  const bool root = rank == collective.root;
  switch (collective.kind) {
    case Kind::kAllReduce:
    case Kind::kBroadcast:
    case Kind::kBarrier: return {.count = 1, .first = 0};
    case Kind::kReduce: return {.count = root ? 1u : 0u, .first = 0};
    case Kind::kReduceScatter:
    case Kind::kScatter: return own_block(rank);
    case Kind::kAllGather:
    case Kind::kAllToAll: return blocks_of_all(collective);
    case Kind::kGather: return root ? blocks_of_all(collective) : Blocks{};
    case Kind::kSendReceive: break;
  }
  return {};
}

std::uint32_t input_chunks(const PlanShape& shape, std::uint32_t rank) {
  return input_blocks(shape.collective, rank).count * shape.chunks;
}

std::uint32_t output_chunks(const PlanShape& shape, std::uint32_t rank) {
  return output_blocks(shape.collective, rank).count * shape.chunks;
}

std::uint32_t data(const PlanShape& shape) {
  switch (shape.collective.kind) {
    case Kind::kReduceScatter:
    case Kind::kAllToAll:
    case Kind::kScatter: return shape.collective.ranks * shape.chunks;
    default: return shape.chunks;
  }
}

Wanted wanted(const PlanShape& shape, std::uint32_t rank, std::uint32_t chunk) {
  const std::uint32_t pieces = shape.chunks;
  switch (shape.collective.kind) {
    case Kind::kAllReduce:
    case Kind::kReduce:
    case Kind::kBarrier: return {.datum = chunk, .contributor = kEveryRank};
    case Kind::kBroadcast: return {.datum = chunk, .contributor = shape.collective.root};
    case Kind::kAllGather:
    case Kind::kGather: return {.datum = chunk % pieces, .contributor = chunk / pieces};
    case Kind::kReduceScatter: return {.datum = rank * pieces + chunk, .contributor = kEveryRank};
    case Kind::kAllToAll: return {.datum = rank * pieces + chunk % pieces, .contributor = chunk / pieces};
    case Kind::kScatter: return {.datum = rank * pieces + chunk, .contributor = shape.collective.root};
    case Kind::kSendReceive: break;
  }
  return {};
}

std::uint32_t output_alias(const PlanShape& shape, std::uint32_t rank, std::uint32_t input_chunk) {
  const std::uint32_t pieces = shape.chunks;
  const bool root = rank == shape.collective.root;
  switch (shape.collective.kind) {
    case Kind::kAllReduce:
    case Kind::kAllToAll:
    case Kind::kBarrier: return input_chunk;
    case Kind::kBroadcast:
    case Kind::kReduce: return root ? input_chunk : kNoChunk;
    case Kind::kAllGather: return rank * pieces + input_chunk;
    case Kind::kGather: return root ? rank * pieces + input_chunk : kNoChunk;
    case Kind::kReduceScatter: return input_chunk / pieces == rank ? input_chunk % pieces : kNoChunk;
    case Kind::kScatter: return root && input_chunk / pieces == rank ? input_chunk % pieces : kNoChunk;
    case Kind::kSendReceive: break;
  }
  return kNoChunk;
}

}  // namespace tutti
