// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"net/netip"

	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/spaces"
)

// once is the answer of the node to a question that a session asks at most once. Most sessions do not ask at all.
type once[T any] struct {
	answer T
	asked  bool
}

func (o *once[T]) get(ask func() T) T {
	if !o.asked {
		o.answer, o.asked = ask(), true
	}
	return o.answer
}

// Runtime returns the name of the runtime's process, as records have it.
func (k *Kernel) Runtime() string { return k.runtime() }

func (k *Kernel) runtime() string {
	return k.runtimeName.get(func() string { return life.RuntimeName(k.session.Paths.Proc, k.session.RuntimePID()) })
}

// caller returns the process that called, if it is containerd.
func (k *Kernel) caller() *life.Caller {
	return k.containerd.get(func() *life.Caller { return life.ReadCaller(k.session.Paths.Proc, k.session.CallerPID()) })
}

// attached finds an address among the containers on this host's links.
func (k *Kernel) attached(addrs ...netip.Addr) (string, error) {
	find := k.containers.get(func() spaces.Finder { return spaces.NewFinderHere(k.session.Paths.Proc) })
	return find(addrs...)
}
