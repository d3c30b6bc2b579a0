#include "cuda/pointer.h"

#include <array>
#include <bit>

#include "base/assert.h"

namespace tutti::cuda {

Result<PointerInfo> classify(const Driver& driver, const void* pointer) {
  MemoryType type = MemoryType::kUnknown;
  CUcontext context = nullptr;
  std::uint32_t managed = 0;
  int device = -1;
  std::array attributes = {PointerAttribute::kMemoryType, PointerAttribute::kContext, PointerAttribute::kIsManaged,
                           PointerAttribute::kDeviceOrdinal};
  std::array<void*, 4> values = {&type, &context, &managed, &device};
  // Unlike cuPointerGetAttribute, this function succeeds for memory that the driver does not know, and returns zeros.
  TUTTI_TRY(driver.check(driver.api().pointer_get_attributes(attributes.size(), attributes.data(), values.data(),
                                                             std::bit_cast<CUdeviceptr>(pointer)),
                         "cuPointerGetAttributes"));
  if (type == MemoryType::kUnknown) return PointerInfo{};
  if (managed != 0) return PointerInfo{MemoryKind::kManaged, device, context};
  const MemoryKind kind = type == MemoryType::kHost ? MemoryKind::kPinned : MemoryKind::kDevice;
  return PointerInfo{kind, device, context};
}

Result<PointerInfo> classify(const void* pointer) {
  const Driver* driver = Driver::loaded();
  if (driver == nullptr) return PointerInfo{};
  return classify(*driver, pointer);
}

Result<bool> is_plain_device_memory(const Driver& driver, const void* pointer) {
  auto where = classify(driver, pointer);
  if (!where) return where.error();
  if (where->kind != MemoryKind::kDevice || where->context == nullptr) return false;
  std::uint32_t plain = 0;
  std::array attributes = {PointerAttribute::kIsLegacyIpcCapable};
  std::array<void*, 1> values = {&plain};
  TUTTI_TRY(driver.check(driver.api().pointer_get_attributes(attributes.size(), attributes.data(), values.data(),
                                                             std::bit_cast<CUdeviceptr>(pointer)),
                         "cuPointerGetAttributes"));
  return plain != 0;
}

Result<bool> is_pool_memory(const Driver& driver, const void* pointer) {
  void* pool = nullptr;
  std::array attributes = {PointerAttribute::kMemoryPool};
  std::array<void*, 1> values = {&pool};
  TUTTI_TRY(driver.check(driver.api().pointer_get_attributes(attributes.size(), attributes.data(), values.data(),
                                                             std::bit_cast<CUdeviceptr>(pointer)),
                         "cuPointerGetAttributes"));
  return pool != nullptr;
}

}  // namespace tutti::cuda
