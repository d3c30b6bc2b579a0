// Finds the ports of this machine's RDMA devices that can be used, and the reasons why others cannot be used.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "transports/verbs/device_filter.h"
#include "transports/verbs/gid.h"
#include "transports/verbs/library.h"
#include "transports/verbs/verbs_maker.h"

namespace tutti {
namespace {

// The vendor ids of the software devices rdma_rxe and siw.
constexpr std::array<std::uint32_t, 2> kSoftwareVendors = {0xffffff, 0x626d74};
// Number of entries of a port's GID table that are read. TUTTI_RDMA_GID_INDEX cannot name a later one, because its
// maximum is 255. A NIC can have space for 1024 GIDs, of which most are empty.
constexpr int kMostGids = 256;

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string sysfs(const std::string& device, std::uint8_t port, const std::string& rest) {
  return fmt::format("/sys/class/infiniband/{}/ports/{}/{}", device, port, rest);
}

std::uint32_t mbps_of(const ibv_port_attr& attributes) {
  static constexpr std::array<std::pair<int, std::uint32_t>, 8> kLaneMbps = {
      {{1, 2500}, {2, 5000}, {4, 10'000}, {8, 10'000}, {16, 14'000}, {32, 25'000}, {64, 50'000}, {128, 100'000}}};
  static constexpr std::array<std::pair<int, std::uint32_t>, 5> kLanes = {{{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}}};
  const auto find = [](const auto& table, int key) {
    for (const auto& [code, value] : table) {
      if (code == key) return value;
    }
    return 0u;
  };
  return find(kLaneMbps, attributes.active_speed) * find(kLanes, attributes.active_width);
}

bool is_software(const ibv_device_attr& limits) {
  return std::find(kSoftwareVendors.begin(), kSoftwareVendors.end(), limits.vendor_id) != kSoftwareVendors.end();
}

class PortFinder {
 public:
  PortFinder(const VerbsLibrary& library, const VerbsSettings& settings, VerbsPorts& found)
      : library_(library), settings_(settings), found_(found) {}

  void look(ibv_device* device) {
    const std::string name = library_.get_device_name(device);
    if (device->transport_type != IBV_TRANSPORT_IB) {
      return refuse(fmt::format("{}: not InfiniBand or RoCE (iWARP has no writes with immediate data)", name));
    }
    ibv_context* const context = library_.open_device(device);
    if (context == nullptr) {
      count_unseen(device, name);
      refuse(fmt::format("{} cannot be opened: may this user read and write /dev/infiniband/uverbs*?", name));
      return;
    }
    ibv_device_attr limits{};
    if (library_.query_device(context, &limits) != 0) {
      count_unseen(device, name);
      refuse(fmt::format("{}: ibv_query_device has failed", name));
    } else {
      for (int port = 1; port <= limits.phys_port_cnt; ++port) {
        look(context, name, static_cast<std::uint8_t>(port), limits);
      }
    }
    library_.close_device(context);
  }

  // Counts each port of an InfiniBand or RoCE device that TUTTI_RDMA_DEVICES accepts, even if the port is down or
  // cannot be used for another reason, and gives the usable ports their rails. Otherwise the other ports would move to
  // lower rails, and would be connected to the wrong ports of the peers.
  void number_rails() {
    const std::vector<std::size_t> rails = assign_rails(settings_.devices, seen_);
    for (VerbsPort& port : found_.usable) {
      const auto is_it = [&](const PortName& one) { return one.device == port.device && one.number == port.number; };
      const auto place = std::find_if(seen_.begin(), seen_.end(), is_it) - seen_.begin();
      port.rail = static_cast<std::uint16_t>(rails[static_cast<std::size_t>(place)]);
    }
    std::sort(found_.usable.begin(), found_.usable.end(),
              [](const VerbsPort& a, const VerbsPort& b) { return a.rail < b.rail; });
  }

 private:
  void refuse(std::string why) { found_.refused.push_back(std::move(why)); }

  // Adds the ports of a device that cannot be opened or queried, so that they keep their rails, too.
  void count_unseen(const ibv_device* device, const std::string& name) {
    for (const std::uint8_t number : listed_ports(device->ibdev_path)) {
      seen_.push_back({.device = name, .number = number});
    }
  }

  void look(ibv_context* context, const std::string& device, std::uint8_t number, const ibv_device_attr& limits) {
    const std::string place = fmt::format("{} port {}", device, number);
    seen_.push_back({.device = device, .number = number, .software = is_software(limits)});
    if (!is_port_accepted(settings_.devices, device, number)) {
      return refuse(fmt::format("{}: not among TUTTI_RDMA_DEVICES={}", place, settings_.devices));
    }
    ibv_port_attr attributes{};
    if (library_.query_port(context, number, &attributes) != 0) {
      return refuse(fmt::format("{}: ibv_query_port has failed", place));
    }
    if (attributes.state != IBV_PORT_ACTIVE) {
      return refuse(fmt::format("{}: not active (its state is {})", place, library_.port_state_str(attributes.state)));
    }
    if (limits.max_srq == 0) return refuse(fmt::format("{}: the device has no shared receive queues", place));
    VerbsPort port;
    port.device = device;
    port.number = number;
    port.ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
    port.mbps = mbps_of(attributes);
    port.mtu = static_cast<std::uint8_t>(attributes.active_mtu);
    port.lid = attributes.lid;
    std::string reason;
    const auto choice =
        choose_gid(gids(context, port, attributes.gid_tbl_len), port.ethernet, settings_.gid_index, reason);
    if (!choice) return refuse(fmt::format("{}: {}", place, reason));
    port.gid_index = choice->entry.index;
    port.gid = choice->entry.gid;
    port.first_version = choice->entry.type == GidType::kRoceV1;
    port.gid_reason = choice->reason;
    port.interface = first_line(sysfs(device, number, fmt::format("gid_attrs/ndevs/{}", port.gid_index)));
    port.software = is_software(limits);
    found_.usable.push_back(std::move(port));
  }

  std::vector<GidEntry> gids(ibv_context* context, const VerbsPort& port, int table) const {
    std::vector<GidEntry> entries;
    const int last = std::max(settings_.gid_index.value_or(0) + 1, std::min(table, kMostGids));
    for (int index = 0; index < std::min(table, last); ++index) {
      ibv_gid raw{};
      if (library_.query_gid(context, port.number, index, &raw) != 0) continue;
      GidEntry entry{.index = index, .gid = {}, .type = GidType::kInfiniBand};
      std::copy(std::begin(raw.raw), std::end(raw.raw), entry.gid.begin());
      if (is_zero(entry.gid)) continue;
      const std::string type = first_line(sysfs(port.device, port.number, fmt::format("gid_attrs/types/{}", index)));
      if (port.ethernet) entry.type = type == "RoCE v2" ? GidType::kRoceV2 : GidType::kRoceV1;
      entries.push_back(entry);
    }
    return entries;
  }

  const VerbsLibrary& library_;
  const VerbsSettings& settings_;
  VerbsPorts& found_;
  std::vector<PortName> seen_;
};

// If there are usable NICs, software devices are used only if TUTTI_RDMA_DEVICES is set and accepts them. Otherwise a
// message would be divided between NICs and software devices, and would take as long as the part on the slower device.
void leave_out_software(const VerbsSettings& settings, VerbsPorts& found) {
  const auto is_card = [](const VerbsPort& port) { return !port.software; };
  if (!settings.devices.empty() || std::none_of(found.usable.begin(), found.usable.end(), is_card)) return;
  for (const VerbsPort& port : found.usable) {
    if (!port.software) continue;
    found.refused.push_back(
        fmt::format("{} port {}: a software device, which is used beside NICs only if TUTTI_RDMA_DEVICES "
                    "names it",
                    port.device, port.number));
  }
  std::erase_if(found.usable, [](const VerbsPort& port) { return port.software; });
}

}  // namespace

std::string describe(const VerbsPort& port) {
  return fmt::format("{} port {}: rail {}, {} Mbit/s, {}{}, MTU {}, GID {} ({}): {}", port.device, port.number,
                     port.rail, port.mbps, port.ethernet ? "RoCE" : "InfiniBand",
                     port.interface.empty() ? "" : fmt::format(" on {}", port.interface), 128 << port.mtu,
                     port.gid_index, text_of(port.gid), port.gid_reason);
}

Result<VerbsPorts> find_verbs_ports(const VerbsSettings& settings) {
  auto library = VerbsLibrary::load();
  if (!library) return library.error();
  VerbsPorts found;
  int count = 0;
  ibv_device** const list = (*library)->get_device_list(&count);
  if (list == nullptr) return found;
  PortFinder finder(**library, settings, found);
  for (int i = 0; i < count; ++i) finder.look(list[i]);
  (*library)->free_device_list(list);
  finder.number_rails();
  leave_out_software(settings, found);
  return found;
}

}  // namespace tutti
