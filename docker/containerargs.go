// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/docker/state"
)

// The names in CNI_ARGS that describe the container.
const (
	argID     = "DOCKER_CONTAINER_ID"
	argName   = "DOCKER_CONTAINER_NAME"
	argLabels = "DOCKER_LABEL_"
)

// containerArgs describe the container in CNI_ARGS, if it is known.
func containerArgs(e *state.Endpoint) (args [][2]string) {
	if e.Container != "" {
		args = append(args, [2]string{argID, e.Container})
	}
	if e.Name != "" {
		args = append(args, [2]string{argName, e.Name})
	}
	for _, k := range slices.Sorted(maps.Keys(e.Labels)) {
		args = append(args, [2]string{k, e.Labels[k]})
	}
	return args
}

// label reads the container's labels that the network's option selects. A plugin that
// decides by labels must not be called without them, so a label that cannot be read or
// expressed is an error.
func (d *Driver) label(n *network, e *state.Endpoint) error {
	if n.labels == "" {
		return nil
	}
	c, err := d.containerFile(e)
	if err != nil {
		return fmt.Errorf("%s: %w", optLabels, err)
	}
	e.Labels, err = labels(c.Config.Labels, n.labels)
	return err
}

// labels are CNI_ARGS for the labels with a prefix. CNI_ARGS is K=V;K=V with alphanumeric
// names, and has no escapes.
func labels(all map[string]string, prefix string) (map[string]string, error) {
	out := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		value := all[name]
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		if strings.ContainsFunc(value, func(c rune) bool { return c == ';' || c == '=' || c < ' ' || c == 0x7f }) {
			return nil, fmt.Errorf("%s: label %s=%q cannot be expressed in CNI_ARGS: a value must not contain ';' or '='", optLabels, name, value)
		}
		arg := argLabels + strings.Map(alphanumeric, name)
		if _, twice := out[arg]; twice {
			return nil, fmt.Errorf("%s: two labels are %s", optLabels, arg)
		}
		out[arg] = value
	}
	return out, nil
}

func alphanumeric(c rune) rune {
	if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' {
		return c
	}
	return '_'
}
