// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/spec"
)

// attachedPod is what explain prints for one attachment of a Kubernetes pod.
type attachedPod struct {
	*explanation
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
	Pod         string `json:"pod"`
}

// podNamed reports whether word is NAMESPACE/POD and not the path of a network's file.
func podNamed(word string) bool {
	namespace, name, _ := strings.Cut(word, "/")
	args := []spec.Arg{{Key: "K8S_POD_NAMESPACE", Value: namespace}, {Key: "K8S_POD_NAME", Value: name}}
	if word == "" || spec.Pod(args) != word || filepath.Ext(word) == ".conflist" {
		return false
	}
	_, err := os.Lstat(word)
	return errors.Is(err, os.ErrNotExist)
}

// pod prints the attachments of a Kubernetes pod. If the kernel differs from one of them, pod fails.
func (c *explainCommand) pod(name string) error {
	if c.NetNS != "" || c.ID != "example" || len(c.Ports)+len(c.IPs)+len(c.MAC) > 0 {
		return usage("the pod's own are printed", "--id, --netns, and the flags of ports and addresses go with a network, not with a pod")
	}
	if err := needRoot("explain of a pod"); err != nil {
		return err
	}
	attachments, err := c.app.podOf(name)
	if err != nil {
		return err
	}
	out, text, errs := []*attachedPod{}, "", []error(nil)
	for _, s := range attachments {
		p, version, err := c.made(s)
		out, errs = append(out, p), append(errs, err)
		text += fmt.Sprintf("# %s, %s\n", p.Network, p.IfName) + p.text(version)
	}
	return errors.Join(append([]error{c.app.show(out, text)}, errs...)...)
}

// podOf returns those attachments of a pod whose namespaces exist. A runtime that restarted a pod's
// sandbox may have left the attachments of the earlier sandbox.
func (a *app) podOf(name string) (found []*localAttachment, err error) {
	list, unseen := a.seen("")
	gone := false
	for _, s := range list {
		switch {
		case s.Pod == name && s.Alive:
			found = append(found, s)
		case s.Pod == name:
			gone = true
		}
	}
	switch {
	case unseen != nil:
		return nil, unseen
	case len(found) == 0 && gone:
		return nil, hinted(fmt.Errorf("the namespace of pod %s is gone", name), "patchbay gc shows what it left")
	case len(found) == 0:
		return nil, hinted(fmt.Errorf("%s is no pod with a network of this node, and no file", name), "patchbay ps lists the pods")
	}
	return found, nil
}

// made asks each plugin of an attachment what its ADD made. It runs a CHECK whose plugins print
// the state that they compare with the kernel. err says what differs.
func (c *explainCommand) made(s *localAttachment) (p *attachedPod, version string, err error) {
	p = &attachedPod{&explanation{Network: s.Network, Plugins: []*pluginSteps{}}, s.ContainerID, s.IfName, s.Pod}
	at := chain.Attachment{ContainerID: s.ContainerID, NetNS: s.NetNS, IfName: s.IfName}
	rt := c.app.runtime(nil)
	cached, err := rt.Cached(s.Network, at)
	if err == nil && (cached == nil || cached.Result == nil) {
		err = errors.New(c.app.uncached())
	}
	var list *chain.List
	if err == nil {
		list, err = chain.ParseCached(cached.Config)
	}
	if err == nil {
		rt, version = rt.With(chain.WithInvoker(&dryInvoker{app: c.app, out: p.explanation})), list.CNIVersion
		p.Result, err = cached.Result.As(version)
	}
	if err == nil {
		err = p.ask(c.app.ctx, rt, list, at)
	}
	f := newFinding(s.Network, at).fill(err)
	f.name = "pod " + s.Pod
	return p, version, f.err(false)
}

// ask calls CHECK of every plugin. A configuration of an earlier version, such as that of
// containerd's loopback, has no CHECK.
func (p *attachedPod) ask(ctx context.Context, rt *chain.Runtime, list *chain.List, at chain.Attachment) error {
	err := rt.Inspect(ctx, list, at)
	if !errors.Is(err, chain.ErrCheckNotSupported) {
		return err
	}
	for i := range list.Plugins {
		why := fmt.Sprintf("CNI %s has no CHECK: the plugin cannot be asked what it made", list.CNIVersion)
		p.Plugins = append(p.Plugins, &pluginSteps{Type: list.Plugins[i].Type, State: []string{why}})
	}
	return nil
}
