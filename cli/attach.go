// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/plugin/portmap"
	"github.com/patchbay-net/patchbay/spec"
)

// target holds the flags with which add, del and check name an attachment. It reads the same
// environment variables as cnitool. It also has flags for names that the user of cnitool cannot
// choose.
type target struct {
	app    *app
	ID     *string `long:"id" value-name:"ID" description:"container id (derived from the namespace's path, as cnitool does)"`
	IfName string  `long:"ifname" short:"i" value-name:"NAME" env:"CNI_IFNAME" default:"eth0" description:"name of the interface in the container"`
	capabilityFlags
}

// attachFlags holds the flags and arguments that add and del share.
type attachFlags struct {
	target
	JSON bool `long:"json" description:"print errors as the CNI error object, too"`
	verbosity
	Args struct {
		Network networkName `positional-arg-name:"NETWORK" required:"1"`
		NetNS   nsName      `positional-arg-name:"NETNS" required:"1"`
	} `positional-args:"yes"`
}

// resolve finds the network and names the attachment.
func (c *target) resolve(name networkName, netns nsName) (*network, chain.Attachment, error) {
	at := chain.Attachment{IfName: ifName(c.IfName)}
	var err error
	if at.NetNS, err = c.app.netnsPath(string(netns)); err != nil {
		return nil, at, err
	}
	at.ContainerID = containerID(at.NetNS)
	if c.ID != nil {
		at.ContainerID = *c.ID
	}
	if at.ContainerID == "" { // most likely a script's variable that is not set
		return nil, at, usage("without --id it is derived from the namespace's path", "--id is empty")
	}
	if err := wellNamed(at.ContainerID, at.IfName); err != nil {
		return nil, at, err
	}
	if at.Args, err = cniArgs(c.app.getenv("CNI_ARGS")); err != nil {
		return nil, at, err
	}
	n, err := c.app.network(string(name))
	if err != nil {
		return nil, at, err
	}
	at.Capabilities, err = c.capabilities(c.app, n)
	return n, at, err
}

// wellNamed returns an error if the flags name an invalid container id or interface.
func wellNamed(id, ifName string) error {
	if err := spec.ValidateContainerID(id); err != nil {
		return usage("", "--id %s: %w", id, err)
	}
	if err := spec.ValidateIfName(ifName); err != nil {
		return usage("", "--ifname %s: %w", ifName, err)
	}
	return nil
}

// ifName returns the interface to use. An empty CNI_IFNAME means the default, eth0.
func ifName(flag string) string { return cmp.Or(flag, "eth0") }

// netnsPath returns the path of a namespace. A bare name means a namespace below /run/netns.
func (a *app) netnsPath(arg string) (string, error) {
	if !strings.Contains(arg, "/") {
		return filepath.Join(a.paths.NetNS, arg), nil
	}
	path, err := filepath.Abs(arg)
	if err != nil {
		return "", fmt.Errorf("find namespace %s: %w", arg, err)
	}
	return path, nil
}

// containerID returns the id that cnitool derives from a namespace: "cnitool-" and the first 20
// hexadecimal digits of the SHA-512 of its path.
func containerID(netns string) string {
	sum := sha512.Sum512([]byte(netns))
	return fmt.Sprintf("cnitool-%x", sum[:10])
}

// cniArgs splits CNI_ARGS into pairs of key and value. If the variable is empty, it returns nil.
func cniArgs(s string) (out [][2]string, err error) {
	pairs, err := spec.ParseArgs(s)
	if err != nil {
		return nil, hinted(err, `CNI_ARGS is "KEY=VALUE;KEY=VALUE"`)
	}
	for _, p := range pairs {
		out = append(out, [2]string{p.Key, p.Value})
	}
	return out, nil
}

// capArgs reads CAP_ARGS, a JSON object of capabilities.
func capArgs(s string) (out map[string]any, err error) {
	if s == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(s), &out); err != nil {
		return nil, hinted(fmt.Errorf("read CAP_ARGS: %w", err), `CAP_ARGS is a JSON object such as {"mac":"02:00:00:00:00:01"}`)
	}
	return out, nil
}

const addLong = `Attach the network namespace NETNS (a path, or a name below /run/netns) to
NETWORK (a name, or a file) and print the result. If the result cannot be
printed, the attachment is undone.

The environment variables are those of cnitool: NETCONFPATH, CNI_PATH, CNI_ARGS
("K=V;K=V"), CAP_ARGS (a JSON object of capabilities), CNI_IFNAME.

  ip netns add blue
  patchbay add -p 8080:80 patchbay blue
  patchbay del patchbay blue`

type addCommand struct{ attachFlags }

// Execute attaches the namespace.
func (c *addCommand) Execute([]string) error {
	n, at, err := c.resolve(c.Args.Network, c.Args.NetNS)
	if err != nil {
		return err
	}
	if err := c.free(c.app); err != nil {
		return err
	}
	rt := c.app.runtime(n)
	before, berr := rt.Cached(n.Name, at)
	result, err := rt.Add(c.app.ctx, n.List, at)
	if err != nil {
		return outside(undecoded(plainly(err, string(c.Args.NetNS)), string(c.Args.Network)), string(c.Args.Network))
	}
	data, err := result.Encode(n.CNIVersion)
	if err == nil {
		err = c.app.printAll(string(data) + "\n")
	}
	if err != nil && before == nil && berr == nil { // without this test, the DEL could end an attachment that works
		err = c.app.undoFailed(err, func(ctx context.Context) error { return rt.Del(ctx, n.List, at) })
	}
	return err
}

// outside adds why host-local does not give an address.
func outside(err error, network string) error {
	if err == nil || hintOf(err) != "" || !strings.Contains(err.Error(), ipam.NoRange) {
		return err
	}
	return hinted(err, "no range of the network has this address: patchbay network inspect %s shows its subnets", network)
}

// undecoded adds how to find a mistake, if a plugin could not decode its configuration: the plugin's error
// names only the type that it wants.
func undecoded(err error, network string) error {
	if spec.ErrorCode(err) != spec.CodeDecoding || hintOf(err) != "" {
		return err
	}
	return hinted(err, "patchbay network validate %s names the line and the field", network)
}

// undoFailed handles an operation that succeeded but whose result could not be printed. It calls
// undo, and adds the outcome to err.
func (a *app) undoFailed(err error, undo func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), leaveTime)
	defer cancel()
	if uerr := undo(ctx); uerr != nil {
		return fmt.Errorf("%w; undo it: %w", err, uerr)
	}
	return fmt.Errorf("%w; it was undone", err)
}

const delLong = `Detach NETNS from NETWORK. This also succeeds if the namespace is gone, and with a
warning if nothing is attached. It uses the configuration of the ADD, which the cache has,
and without it the network's file.`

type delCommand struct{ attachFlags }

// Execute detaches the namespace, with the configuration of the ADD if the cache has it (SPEC 1.1.0, section 4).
func (c *delCommand) Execute([]string) error {
	n, at, err := c.resolve(c.Args.Network, c.Args.NetNS)
	if err != nil && !errors.Is(err, chain.ErrNoNetwork) {
		return err
	}
	derr := c.app.runtime(n).DelCached(c.app.ctx, string(c.Args.Network), at)
	switch {
	case !chain.CacheUnusable(derr):
		return derr
	case err != nil:
		return err
	}
	known := c.recorded(n.Name, at)
	if err = c.app.runtime(n).Del(c.app.ctx, n.List, at); err == nil && !known {
		c.nothing(n.Name, at)
	}
	return err
}

// recorded reports whether there is a result or a record of the attachment. A file that cannot be read
// counts as one.
func (c *delCommand) recorded(network string, at chain.Attachment) bool {
	list, err := c.app.attachments(network)
	return err != nil || slices.ContainsFunc(list, func(s *localAttachment) bool {
		return s.ContainerID == at.ContainerID && s.IfName == at.IfName
	})
}

// nothing tells a user that there was no such attachment. This is only a warning, because a DEL may be
// repeated.
func (c *delCommand) nothing(network string, at chain.Attachment) {
	name := called(network, cmp.Or(string(c.Args.NetNS), at.ContainerID), at.IfName)
	if c.ID != nil {
		name = called(network, *c.ID, at.IfName)
	}
	c.app.warn(fmt.Errorf("nothing was attached as %s: there is no result and no record of it", name))
	c.app.hint("patchbay ps lists what is attached")
}

// plainError prints its own text in the place of the error that it wraps.
type plainError struct {
	text string
	err  error
}

func (e *plainError) Error() string { return e.text }
func (e *plainError) Unwrap() error { return e.err }

// plainly makes an error of an ADD readable for a user who typed the command. The plugins use the
// words of the reference or of a runtime, so plainly replaces the text of some errors. netns is
// the container's namespace.
func plainly(err error, netns string) error {
	var exists *netstate.VethExistsError
	var inUse *portmap.PortInUseError
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
	case errors.As(err, &inUse) && inUse.Holder != nil:
		return alreadyPublished(inUse, err)
	}
	return err
}

// alreadyPublished names the container that has published the port, and how to end it.
func alreadyPublished(inUse *portmap.PortInUseError, err error) error {
	h := inUse.Holder
	where := h.ContainerID
	if where == containerID(h.NetNS) {
		where = h.NetNS
	}
	name := called(h.Network, where, h.IfName)
	return hinted(&plainError{fmt.Sprintf("%s is already published by %s", inUse.Port(), name), err},
		"publish another port of the host, or end %s; patchbay inspect %s shows it", name, h.ContainerID)
}
