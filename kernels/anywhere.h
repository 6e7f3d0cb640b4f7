#pragma once
// Marks a function that all backends share, those on a GPU included.

#if defined(__CUDACC__)
#define TANDEM_ANYWHERE __host__ __device__
#else
#define TANDEM_ANYWHERE
#endif
