#include "tutti/unique_id.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "base/exceptions.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/rendezvous_server.h"
#include "bootstrap/unique_id_parts.h"

namespace tutti {
namespace {

constexpr std::array<char, 8> kMagic = {'T', 'U', 'T', 'T', 'I', 'U', 'I', 'D'};
constexpr std::uint8_t kVersion = 1;
constexpr std::size_t kMaxPortsToTry = 256;

struct Layout {
  std::array<char, 8> magic = kMagic;
  std::uint8_t version = kVersion;
  std::uint8_t family = 0;
  std::uint16_t port = 0;
  std::array<std::uint8_t, 16> address{};
  std::array<std::uint8_t, 16> secret{};
  std::array<std::uint8_t, 76> zeros{};
  std::uint64_t check = 0;
};
static_assert(sizeof(Layout) == 128 && offsetof(Layout, check) == 120);

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, ErrorScope::kCall, -1, std::move(message)}; }

std::string hexadecimal(std::span<const std::uint8_t> bytes) {
  std::string text;
  for (const std::uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::uint64_t check_of(const Layout& layout) {
  return spread({reinterpret_cast<const char*>(&layout), offsetof(Layout, check)});
}

}  // namespace

std::uint64_t spread(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

std::vector<std::uint16_t> ports_to_try(const PortRange& range) {
  if (range.any()) return {0};
  std::vector<std::uint16_t> ports;
  // Start at a port that depends on the process id, so that the processes of a machine do not all compete for the
  // first port.
  const std::uint32_t start = static_cast<std::uint32_t>(getpid()) * 7;
  for (std::uint32_t i = 0; i < std::min<std::uint32_t>(range.count(), kMaxPortsToTry); ++i) {
    ports.push_back(static_cast<std::uint16_t>(range.first + (start + i) % range.count()));
  }
  return ports;
}

Error no_unique_id() {
  return {ErrorCode::kSystem, ErrorScope::kCommunicator, 0,
          "rank 0 could not make a unique id, so the ranks cannot meet: see the error of rank 0"};
}

Result<UniqueIdParts> unpack_unique_id(const UniqueId& id) {
  Wiped<Layout> layout;
  std::memcpy(static_cast<Layout*>(&layout), id.bytes.data(), sizeof(Layout));
  if (layout.magic != kMagic) {
    return invalid("the unique id is none of Tutti's: take what UniqueId::create() or ncclGetUniqueId() gave");
  }
  if (layout.version != kVersion) {
    return invalid(fmt::format("the unique id has version {}, known here is {}: install one version of Tutti",
                               layout.version, kVersion));
  }
  const bool v4 = layout.family == 4;
  if (layout.check != check_of(layout) || (!v4 && layout.family != 6) || layout.port == 0) {
    return invalid("the unique id was garbled on its way");
  }
  std::array<char, INET6_ADDRSTRLEN> address{};
  inet_ntop(v4 ? AF_INET : AF_INET6, layout.address.data(), address.data(), address.size());
  const std::string_view secret = bytes_of(layout.secret);
  return UniqueIdParts{address.data(), layout.port, job_id_of_secret(secret), key_of_secret(secret)};
}

Result<UniqueId> serve_unique_id(const std::string& address, const PortRange& ports, std::chrono::milliseconds timeout,
                                 const std::optional<JobKey>& configured) {
  Wiped<Layout> layout;
  layout.family = inet_pton(AF_INET, address.c_str(), layout.address.data()) == 1    ? 4
                  : inet_pton(AF_INET6, address.c_str(), layout.address.data()) == 1 ? 6
                                                                                     : 0;
  if (layout.family == 0) {
    return Error{ErrorCode::kConfig, ErrorScope::kCall, -1,
                 fmt::format("{} cannot stand in a unique id: a link-local address means something else on every "
                             "machine; choose another interface",
                             address)};
  }
  if (!random_bytes(layout.secret)) {
    return Error{ErrorCode::kSystem, ErrorScope::kCall, -1, "the system gives no random bytes for a unique id"};
  }
  auto listener = Listener::open(address, ports_to_try(ports));
  if (!listener) return listener.error();
  layout.port = listener->port();
  layout.check = check_of(layout);
  auto server = RendezvousServer::start(std::move(*listener),
                                        {.job_id = job_id_of_secret(bytes_of(layout.secret)),
                                         .key = key_of_id(key_of_secret(bytes_of(layout.secret)), configured),
                                         .size = std::nullopt,
                                         .first_wait_ms = std::max<std::int64_t>(1, timeout.count())});
  if (!server) return server.error();
  RendezvousServer::detach(std::move(*server));
  UniqueId id;
  std::memcpy(id.bytes.data(), static_cast<const Layout*>(&layout), sizeof(Layout));
  return id;
}

namespace {

Result<UniqueId> make_unique_id(const UniqueIdOptions& options, const Variables& defaults) {
  auto config = parse_config(with_defaults(environment_variables(), defaults));
  if (!config) return config.error();
  PortRange ports = config->port_range;
  if (options.first_port != 0 || options.last_port != 0) {
    ports = {options.first_port, options.last_port};
    if (options.first_port == 0 || options.last_port < options.first_port) {
      return invalid(fmt::format("ports {} to {} are no range", options.first_port, options.last_port));
    }
  }
  if (options.timeout.count() <= 0) return invalid("the timeout of a unique id is not positive");
  auto configured = key_of_options(options.job_key, options.job_key_file, "UniqueIdOptions");
  if (configured && !*configured) {
    configured = configured_key(config->job_key_file, "TUTTI_JOB_KEY_FILE", config->job_key);
  }
  if (!configured) return configured.error();
  auto address = interface_address(!options.interface.empty()   ? options.interface
                                   : !config->interface.empty() ? config->interface
                                                                : "lo");
  if (!address) return address.error();
  return serve_unique_id(*address, ports, options.timeout, *configured);
}

}  // namespace

Result<UniqueId> detail::create_unique_id(const UniqueIdOptions& options, const Variables& defaults) {
  return guarded("UniqueId::create", [&] { return make_unique_id(options, defaults); });
}

Result<UniqueId> UniqueId::create(const UniqueIdOptions& options) { return detail::create_unique_id(options, {}); }

std::string UniqueId::to_text() const {
  return hexadecimal({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

Result<UniqueId> UniqueId::from_text(std::string_view text) {
  UniqueId id;
  if (text.size() != 2 * id.bytes.size()) {
    return invalid(fmt::format("a unique id has {} hexadecimal digits, not {}", 2 * id.bytes.size(), text.size()));
  }
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return invalid(fmt::format("character {} of the unique id is no hexadecimal digit", i));
    id.bytes[i / 2] = (id.bytes[i / 2] << 4) | static_cast<std::byte>(digit);
  }
  auto parts = unpack_unique_id(id);
  if (!parts) return parts.error();
  return id;
}

}  // namespace tutti
