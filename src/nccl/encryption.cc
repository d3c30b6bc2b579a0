// ncclSetEncryption(): the encryption that the program requests for the communicators that it creates afterwards.
#include <fmt/format.h>

#include <cstring>
#include <mutex>
#include <string>
#include <string_view>

#include "base/crypto/hmac.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/job_key.h"
#include "nccl/api.h"
#include "nccl/settings.h"

namespace tutti::nccl {
namespace {

struct RequestedKey {
  std::mutex mutex;
  std::string key;  // empty: no encryption is requested
};

// Never destroyed, because jobs in the background may still read it after main() has returned.
RequestedKey& requested() {
  static auto& only = *new RequestedKey();
  return only;
}

ncclResult_t refuse(const std::string& message) { return fail(ncclInvalidArgument, "ncclSetEncryption: " + message); }

}  // namespace

std::string requested_key() {
  RequestedKey& now = requested();
  const std::scoped_lock lock(now.mutex);
  return now.key;
}

TUTTI_NCCL(ncclResult_t, SetEncryption, const ncclEncryptionConfig_t* config) {
  return guarded([&] {
    if (config == nullptr || config->magic != NCCL_API_MAGIC || config->size < sizeof(ncclEncryptionConfig_t)) {
      return refuse("the configuration is null or was not initialised with NCCL_ENCRYPTION_CONFIG_INITIALIZER");
    }
    std::string key;
    if (config->mode == NCCL_ENCRYPTION_MODE_PSK) {
      const std::string_view psk = config->psk == nullptr ? "" : config->psk;
      if (psk.size() < kLeastKeyBytes || psk.size() > kMostKeyBytes) {
        return refuse(fmt::format("the pre-shared key has {} characters: give {} to {}", psk.size(), kLeastKeyBytes,
                                  kMostKeyBytes));
      }
      // Only a hash is kept, so that a core dump does not show the program's key.
      const Digest digest = sha256({psk});
      key.assign(reinterpret_cast<const char*>(digest.data()), digest.size());
      if (const Status possible = can_encrypt(); !possible.ok()) return fail(possible.error());
    } else if (config->mode != NCCL_ENCRYPTION_MODE_NONE) {
      return refuse(
          fmt::format("mode {} is neither NCCL_ENCRYPTION_MODE_NONE nor NCCL_ENCRYPTION_MODE_PSK", config->mode));
    }
    RequestedKey& now = requested();
    const std::scoped_lock lock(now.mutex);
    now.key = std::move(key);
    return ncclSuccess;
  });
}

}  // namespace tutti::nccl
