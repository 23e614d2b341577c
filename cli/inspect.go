// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/netfile"
)

const inspectLong = `Print what is known about the attachments of a container, as a JSON array:
network, namespace, interfaces, addresses, routes, published ports, the
plugins of the chain, and the plugins that keep a record. CONTAINER is
an id, the beginning of an id, the name that podman gave it, a namespace (its
path, or its name below /run/netns), or a Kubernetes pod: NAMESPACE/POD. Add
/IFNAME to it for one of several interfaces.`

type inspectCommand struct {
	JSON bool `long:"json" description:"the same: the output is always JSON"`
	app  *app
	Args struct {
		Containers []containerName `positional-arg-name:"CONTAINER[/IFNAME]" required:"1"`
	} `positional-args:"yes"`
}

// inspected is an attachment with details that only inspect prints.
type inspected struct {
	*localAttachment
	Chain []string `json:"chain,omitempty"` // the plugins in the configuration of the ADD
}

// Execute prints the attachments of each container. If a container has none, Execute fails.
func (c *inspectCommand) Execute([]string) error {
	list, err := c.app.seen("")
	if err != nil {
		return err
	}
	out := []inspected{}
	var errs []error
	for _, name := range c.Args.Containers {
		found, err := find(list, string(name), c.app.paths.NetNS)
		errs = append(errs, err)
		for _, s := range found {
			out = append(out, inspect(s))
		}
	}
	c.app.findProcesses(list)
	return errors.Join(append([]error{c.app.printJSON(out)}, errs...)...)
}

// find returns the attachments of one container. name is its id, the beginning of its id, its
// name, its namespace, or its pod.
func find(list []*localAttachment, name, netns string) (found []*localAttachment, err error) {
	for _, s := range list {
		if s.called(name, netns) {
			found = append(found, s)
		}
	}
	if exact := slices.DeleteFunc(slices.Clone(found), func(s *localAttachment) bool { return s.ContainerID != name }); len(exact) > 0 {
		return exact, nil
	}
	ids := map[string]bool{}
	for _, s := range found {
		ids[s.ContainerID] = true
	}
	switch {
	case len(found) == 0:
		return nil, hinted(fmt.Errorf("no attachment of a container %s", name), "patchbay ps lists them")
	case len(ids) > 1 && !slices.ContainsFunc(found, func(s *localAttachment) bool { return s.in(name, netns) }):
		return nil, hinted(fmt.Errorf("%s is the beginning of %d ids", name, len(ids)), "patchbay ps --no-trunc prints them whole")
	}
	return found, nil
}

// called reports whether name is the container's id, the beginning of that id, its name, its namespace, or its pod, or
// one of these with the interface of the attachment.
func (s *localAttachment) called(name, netns string) bool {
	at := strings.LastIndexByte(name, '/')
	return s.of(name, netns) || at > 0 && name[at+1:] == s.IfName && s.of(name[:at], netns)
}

func (s *localAttachment) of(name, netns string) bool {
	return name != "" && strings.HasPrefix(s.ContainerID, name) || s.in(name, netns)
}

// in reports whether name is the container's own, its namespace, or its pod.
func (s *localAttachment) in(name, netns string) bool {
	return name != "" && (s.Name == name || s.Pod == name) || s.NetNS != "" && (s.NetNS == name || s.NetNS == filepath.Join(netns, name))
}

func inspect(s *localAttachment) inspected {
	i := inspected{localAttachment: s}
	if list, err := chain.ParseCached(s.config); err == nil {
		i.Chain = netfile.Describe(list).Plugins
	}
	return i
}
