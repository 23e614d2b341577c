// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
)

// Cluster is the name of the cluster in a host's own store. The hosts that it serves use it
// too.
const Cluster = "hosts"

// agentWaits is how long the agent waits for a command that serves the store. It is longer than
// a command may take.
const agentWaits = 30 * time.Second

// openLocal opens the store in a directory of this host. The process that holds the lock of the
// store serves it to the other processes. This process is the agent, or a command while no agent runs.
// Only one command runs at a time, so that no command depends on another.
func openLocal(ctx context.Context, dir string, agent bool, listen *Options) (s *Engine, err error) {
	at := filepath.Join(dir, "etcd")
	if err := durable.MakeDir(dir, "etcd"); err != nil {
		return nil, fmt.Errorf("open store %s: %w", dir, err)
	}
	if s, err = connect(Options{Endpoints: []string{"unix://" + filepath.Join(at, socketName)}, Cluster: Cluster}); err != nil {
		return nil, err
	}
	if err = s.serveLocal(ctx, at, agent, listen); err == nil {
		err = s.takeOver(ctx, dir)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open store %s: %w", dir, err), s.Close())
	}
	return s, nil
}

// serveLocal starts the server, unless the agent is serving the store.
func (s *Engine) serveLocal(ctx context.Context, at string, agent bool, listen *Options) error {
	wait := agentWaits
	if !agent {
		unlock, err := durable.Lock(ctx, filepath.Join(at, "turn"))
		if err != nil {
			return err
		}
		s.closed = append(s.closed, unlock)
		wait = 0
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wait, unix.EWOULDBLOCK)
	defer cancel()
	unlock, err := durable.Lock(ctx, filepath.Join(at, "lock"))
	if !agent && errors.Is(err, unix.EWOULDBLOCK) {
		return nil
	}
	if err != nil {
		return err
	}
	s.closed = append(s.closed, unlock)
	own, err := start(context.WithoutCancel(ctx), at, listen)
	if err == nil {
		s.closed = append(s.closed, own.stop)
	}
	return err
}
