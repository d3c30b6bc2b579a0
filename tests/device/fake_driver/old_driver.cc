// A libcuda.so.1 older than CUDA 12. It has no cuGetProcAddress_v2; its only function returns its version, 11.4.
extern "C" __attribute__((visibility("default"))) int cuDriverGetVersion(int* version) {
  *version = 11040;
  return 0;
}
