// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package networks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/npwg"
	"github.com/patchbay-net/patchbay/internal/npwg/mirror"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// chosen is what a pod asks for.
type chosen struct {
	pod         npwg.Pod
	networks    []npwg.Selection
	definitions []npwg.Definition // of each network
	gateways    []npwg.Gateway
}

// choose returns the networks that the pod's annotation selects, or nil if there are none. A container that is not a pod has none.
func choose(ctx context.Context, r *plugin.Request) (*chosen, error) {
	pod, err := podOf(r)
	if pod == nil || err != nil {
		return nil, err
	}
	annotation, err := annotationOf(ctx, r, pod)
	if err != nil {
		return nil, err
	}
	c := &chosen{pod: *pod}
	err = c.read(r, annotation)
	if errors.Is(err, npwg.ErrAnnotation) && plugin.ConfOf[Conf](r).OnInvalid == "ignore" {
		kernel.Warn(r, fmt.Errorf("pod %s/%s starts without further networks: %w", pod.Namespace, pod.Name, err))
		return nil, nil
	}
	if err != nil {
		return nil, spec.Errorf(spec.CodeInvalidConfig, "pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if len(c.networks) == 0 {
		return nil, nil
	}
	if err := c.find(ctx, r); err != nil {
		return nil, err
	}
	return c, nil
}

// podOf returns the pod of a call, or nil if the container is no pod.
func podOf(r *plugin.Request) (*npwg.Pod, error) {
	args, err := r.CNIArgs()
	if err != nil {
		return nil, err
	}
	namespace, isPod := spec.LookupArg(args, "K8S_POD_NAMESPACE")
	if !isPod {
		return nil, nil
	}
	if spec.Pod(args) == "" {
		return nil, spec.Errorf(spec.CodeInvalidEnvironment, "K8S_POD_NAMESPACE and K8S_POD_NAME of CNI_ARGS are no names of a namespace and a pod: which networks it has is not known")
	}
	name, _ := spec.LookupArg(args, "K8S_POD_NAME")
	uid, _ := spec.LookupArg(args, "K8S_POD_UID")
	return &npwg.Pod{Namespace: namespace, Name: name, UID: uid}, nil
}

// annotationOf returns the annotation with the networks of a pod, "" if the pod has none. If the runtime passes annotations, it is
// the runtime's. A kubelet gives each pod some annotations, so a runtime that passes none does not pass them, and the agent has
// written the annotation.
func annotationOf(ctx context.Context, r *plugin.Request, pod *npwg.Pod) (text string, err error) {
	if all := plugin.ConfOf[Conf](r).RuntimeConfig.Annotations; all != nil {
		return all.Networks, nil
	}
	err = await(ctx, r, func() error {
		text, err = mirror.Annotation(r.Session.Paths, *pod)
		return err
	})
	if errors.Is(err, mirror.ErrMissing) {
		return "", spec.Errorf(spec.CodeTryAgain, "%w", err).WithDetails(
			"the container runtime passes no annotations: declare the capability %s for the plugin networks (containerd 1.5, CRI-O 1.29), or see that `patchbayd node` runs, which writes them for all but static pods", annotationsCapability)
	}
	return text, err
}

// read reads the annotation, and decides all that depends on it alone.
func (c *chosen) read(r *plugin.Request, annotation string) (err error) {
	conf := plugin.ConfOf[Conf](r)
	if c.networks, err = npwg.Parse(annotation, c.pod.Namespace); err != nil {
		return err
	}
	if err := npwg.Name(c.networks, interfacesOf(r)...); err != nil {
		return err
	}
	for i := range c.networks {
		if err := npwg.Allowed(&c.networks[i], c.pod.Namespace, conf.GlobalNamespaces); conf.NamespaceIsolation && err != nil {
			return err
		}
	}
	c.gateways, err = npwg.Gateways(c.networks, conf.Strict)
	return err
}

// interfacesOf returns the interfaces that the pod has.
func interfacesOf(r *plugin.Request) []string {
	names := []string{r.IfName}
	if r.Prev() == nil {
		return names
	}
	for _, i := range r.Prev().Interfaces {
		if i.Sandbox != "" {
			names = append(names, i.Name)
		}
	}
	return names
}

// find reads the definitions.
func (c *chosen) find(ctx context.Context, r *plugin.Request) error {
	for i := range c.networks {
		s := &c.networks[i]
		var d npwg.Definition
		err := await(ctx, r, func() (err error) {
			d, err = mirror.Definition(r.Session.Paths, s.Namespace, s.Name)
			return err
		})
		switch {
		case errors.Is(err, mirror.ErrMissing):
			return spec.Errorf(spec.CodeTryAgain, "pod %s/%s: %w", c.pod.Namespace, c.pod.Name, err).
				WithDetails("create the NetworkAttachmentDefinition %s, or see that `patchbayd node` runs, which copies it to the node", s)
		case err != nil:
			return spec.Errorf(spec.CodeInvalidConfig, "pod %s/%s: %w", c.pod.Namespace, c.pod.Name, err)
		}
		c.definitions = append(c.definitions, d)
	}
	return nil
}

// pause is the time between two looks at a file that is missing.
const pause = 50 * time.Millisecond

// await calls look until it finds its file, for at most the configured time. Only an ADD waits.
func await(ctx context.Context, r *plugin.Request, look func() error) (err error) {
	end := time.Now()
	if r.Verb == spec.Add {
		end = end.Add(plugin.ConfOf[Conf](r).wait)
	}
	for {
		if err = look(); !errors.Is(err, mirror.ErrMissing) || time.Now().Add(pause).After(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(pause):
		}
	}
}
