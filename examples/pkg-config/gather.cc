// Everybody's number, by everybody. Built without CMake:
//   c++ -std=c++20 gather.cc -o gather $(pkg-config --cflags --libs tutti)
// Where Tutti is installed into a PREFIX that is no place of the system's: before it
//   export PKG_CONFIG_PATH=PREFIX/lib/pkgconfig
// and behind it, so that the program finds the library: -Wl,-rpath,$(pkg-config --variable=libdir tutti)
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
  std::printf("rank %d of %d has heard of all up to rank %d\n", mine, (*communicator)->size(), all.back());
  return 0;
}
