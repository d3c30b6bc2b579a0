// Gathers the rank numbers of all ranks on every rank. To build it without CMake:
//   c++ -std=c++20 gather.cc -o gather $(pkg-config --cflags --libs tutti)
// If Tutti is installed into a PREFIX that is not one of the system's folders, call this first:
//   export PKG_CONFIG_PATH=PREFIX/lib/pkgconfig
// and append this option, so that the program finds the library: -Wl,-rpath,$(pkg-config --variable=libdir tutti)
#include <tutti/tutti.h>

#include <cstdio>
#include <vector>

int main() {
  auto communicator = tutti::Communicator::create();
  if (!communicator) return std::fprintf(stderr, "%s\n", to_string(communicator.error()).c_str()), 1;
  const std::int32_t mine = (*communicator)->rank();
  std::vector<std::int32_t> all(static_cast<std::size_t>((*communicator)->size()));
  const tutti::Status status = (*communicator)->all_gather(&mine, all.data(), 1, tutti::DataType::kInt32);
  if (!status) return std::fprintf(stderr, "%s\n", to_string(status.error()).c_str()), 1;
  std::printf("rank %d of %d received the numbers up to rank %d\n", mine, (*communicator)->size(), all.back());
  return 0;
}
