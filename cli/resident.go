// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/patchbay-net/patchbay/plugin"
)

// Resident runs the calls of plugin processes until a signal ends it, and returns the exit status.
// `patchbayd plugins` executes the program for this. The caller is locked to the first thread, which
// handover.Serve needs.
func Resident(all []*plugin.Plugin) int {
	// A write to a closed log must not end the server.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	logger := log.New(os.Stderr, "", log.LstdFlags)
	if err := plugin.Resident(ctx, all, logger.Printf); err != nil {
		logger.Print(err)
		return 1
	}
	return 0
}
