#pragma once
// Signals that ask a job to stop: SIGTERM, SIGINT and SIGUSR1 set a flag that the step loop reads.

namespace tandem::base {

// Installs the handlers. A second SIGINT ends the process at once.
void watchStopSignals();

// The signal received, or 0.
int stopSignal();

}  // namespace tandem::base
