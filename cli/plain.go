// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/plugin/portmap"
)

// plainError prints another text than the error it wraps.
type plainError struct {
	text string
	err  error
}

func (e *plainError) Error() string { return e.text }
func (e *plainError) Unwrap() error { return e.err }

// plainly makes an error of an ADD readable for a user who typed the command. The plugins use
// the words of the reference or of a runtime, so it replaces the text of some errors. netns is
// the container's namespace.
func plainly(err error, netns string) error {
	var exists *netstate.VethExistsError
	var taken *portmap.TakenError
	switch {
	case errors.As(err, &exists) && exists.In != "":
		text := fmt.Sprintf("this container already has %s of this network, in %s; use another --id, or del first", exists.IfName, exists.In)
		return &plainError{text, err}
	case errors.As(err, &exists):
		other := "eth1"
		if exists.IfName == other {
			other = "eth2"
		}
		text := fmt.Sprintf("%s already has %s; use another --ifname (-i %s), or del first", netns, exists.IfName, other)
		return &plainError{text, err}
	case errors.As(err, &taken) && taken.Holder != nil:
		return alreadyPublished(taken, err)
	}
	return err
}

// alreadyPublished names the container that has published the port, and how to end it.
func alreadyPublished(taken *portmap.TakenError, err error) error {
	h := taken.Holder
	where := h.ContainerID
	if where == containerID(h.NetNS) {
		where = h.NetNS
	}
	name := called(h.Network, where, h.IfName)
	return hinted(&plainError{fmt.Sprintf("%s is already published by %s", taken.Port(), name), err},
		"publish another port of the host, or end %s; patchbay inspect %s shows it", name, h.ContainerID)
}
