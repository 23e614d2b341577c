// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/docker/state"
)

// TestHungRead checks that a call ends in time while it reads a configuration.
func TestHungRead(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	hung := make(chan struct{})
	defer close(hung)
	_, err := orEnd(ctx, func() (int, error) { cancel(); <-hung; return 0, nil })
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestPublisher checks that a message never names a port's owner as "-".
func TestPublisher(t *testing.T) {
	for want, e := range map[string]*state.Endpoint{
		"endpoint abababababab": {ID: "abababababababab"},
		"web":                   {ID: "ab", Name: "web", Container: "c"},
		"c":                     {ID: "ab", Container: "c"},
	} {
		if got := publisher(e); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
