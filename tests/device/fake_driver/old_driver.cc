// A libcuda.so.1 as old as before CUDA 12: it has no cuGetProcAddress_v2, and says its version.
extern "C" __attribute__((visibility("default"))) int cuDriverGetVersion(int* version) {
  *version = 11040;
  return 0;
}
