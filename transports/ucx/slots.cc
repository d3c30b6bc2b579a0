#include "transports/ucx/slots.h"

#include "transports/ucx/wire.h"

namespace tutti {

UcxSlots::UcxSlots(std::shared_ptr<UcxContext> context, std::uint32_t count, std::uint64_t stride)
    : context_(std::move(context)), count_(count), stride_(stride), memory_(make_page_bytes(count * stride)) {}

Result<std::unique_ptr<UcxSlots>> UcxSlots::create(std::shared_ptr<UcxContext> context, std::uint32_t count,
                                                   std::uint32_t bytes) {
  const UcxLibrary& ucx = context->library();
  // private constructor
  std::unique_ptr<UcxSlots> slots(new UcxSlots(std::move(context), count, ucx_slot_stride(bytes)));
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_PROT |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
  params.address = slots->memory_.get();
  params.length = count * slots->stride_;
  params.prot = UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_LOCAL_WRITE | UCP_MEM_MAP_PROT_REMOTE_WRITE;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  ucp_context_h handle = slots->context_->handle();
  ucs_status_t status = ucx.mem_map(handle, &params, &slots->handle_);
  if (status != UCS_OK) {
    slots->handle_ = nullptr;
    return ucx_error(ucx, "registering slots (raise the limit of locked memory: ulimit -l)", status);
  }
  void* key = nullptr;
  std::size_t key_bytes = 0;
  status = ucx.rkey_pack(handle, slots->handle_, &key, &key_bytes);
  if (status != UCS_OK) return ucx_error(ucx, "making a key of slots", status);
  const UcxSlotsOffer offer{.address = reinterpret_cast<std::uintptr_t>(slots->memory_.get())};
  slots->offer_.assign(reinterpret_cast<const char*>(&offer), sizeof(offer));
  slots->offer_.append(static_cast<const char*>(key), key_bytes);
  ucx.rkey_buffer_release(key);
  if (key_bytes > kMostUcxKey) return ucx_error(ucx, "making a key of slots", UCS_ERR_EXCEEDS_LIMIT);
  return slots;
}

// A forked child has a copy of the memory, but the registration belongs to the parent.
UcxSlots::~UcxSlots() {
  if (handle_ != nullptr && context_->own_process()) context_->library().mem_unmap(context_->handle(), handle_);
}

}  // namespace tutti
