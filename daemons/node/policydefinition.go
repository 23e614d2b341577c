// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// clusterVersion is the version of ClusterNetworkPolicy.
const clusterVersion = "v1alpha2"

const (
	definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

	// settle is how long an API server may need to serve a kind after it says so.
	settle = time.Second
)

// definition is the part of a CustomResourceDefinition that says whether the API server has a kind.
type definition struct {
	Metadata struct{ ResourceVersion string }
	Spec     struct{ Versions []servedVersion }
	Status   struct {
		Conditions []struct{ Type, Status string }
	}
}

type servedVersion struct {
	Name   string
	Served bool
}

// served returns the versions that the API server should have.
func (d *definition) served() (list []string) {
	for _, v := range d.Spec.Versions {
		if v.Served {
			list = append(list, v.Name)
		}
	}
	return list
}

// serves reports whether the API server has a version of the kind.
func (d *definition) serves(version string) bool {
	established := false
	for _, c := range d.Status.Conditions {
		established = established || c.Type == "Established" && c.Status == "True"
	}
	return established && slices.Contains(d.served(), version)
}

// missing handles an API server that does not have the kind in our version. The list is empty only if
// the kind is optional, the definition is gone, or if there is no object: all versions have the same objects. Otherwise the
// former objects stay, and missing says why.
func (w *kindWatch) missing(ctx context.Context) error {
	if w.optional {
		return w.empty(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	d, err := w.findDefinition(ctx)
	if apierrors.IsForbidden(err) && w.unused() {
		d, err = w.discovered(ctx) // the role is from an earlier manifest and lacks the right
	}
	switch {
	case err != nil:
		return fmt.Errorf("the API server does not have them in version %s, and whether there are some is not known, because CustomResourceDefinition %s cannot be read: %w",
			clusterVersion, w.definition, err)
	case d == nil:
		return w.empty(ctx)
	case slices.Contains(d.served(), clusterVersion):
		return fmt.Errorf("the API server does not serve them yet, although CustomResourceDefinition %s has version %s", w.definition, clusterVersion)
	}
	for _, version := range d.served() {
		if none, err := w.noneIn(ctx, version); err == nil && none {
			return w.empty(ctx)
		}
	}
	return w.otherVersions(d.served())
}

// empty makes the list of the kind empty, if the API server can be trusted.
func (w *kindWatch) empty(ctx context.Context) error {
	return w.replace(ctx, func(func([]byte, error) bool) error { return nil })
}

// findDefinition returns the kind's definition, or nil if there is none.
func (w *kindWatch) findDefinition(ctx context.Context) (d *definition, err error) {
	err = w.eachOf(ctx, definitionsPath, metav1.ListOptions{FieldSelector: "metadata.name=" + w.definition}, func(text []byte) bool {
		d = new(definition)
		return json.Unmarshal(text, d) == nil
	})
	return d, err
}

// discovered returns the versions of the kind, which the API server tells every account, or nil if it has none.
func (w *kindWatch) discovered(ctx context.Context) (d *definition, err error) {
	group, resource, _ := strings.Cut(w.path, "/"+clusterVersion+"/")
	var has metav1.APIGroup
	if err := w.read(ctx, group, &has); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	for _, v := range has.Versions {
		var list metav1.APIResourceList
		if err := w.read(ctx, group+"/"+v.Version, &list); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == resource }) {
			d = d.with(v.Version)
		}
	}
	return d, nil
}

// with returns a definition that serves one more version.
func (d *definition) with(version string) *definition {
	if d == nil {
		d = new(definition)
	}
	d.Spec.Versions = append(d.Spec.Versions, servedVersion{version, true})
	return d
}

// read reads what the API server has at a path.
func (w *kindWatch) read(ctx context.Context, path string, into any) error {
	api, err := w.api.get()
	if err != nil {
		return err
	}
	body, err := api.Objects(ctx, path, metav1.ListOptions{})
	if err != nil {
		return err
	}
	defer body.Close() //nolint:errcheck // nothing was written
	return json.NewDecoder(body).Decode(into)
}

// noneIn lists the kind in another version of its API, and reports whether the list is empty.
func (w *kindWatch) noneIn(ctx context.Context, version string) (none bool, err error) {
	none = true
	err = w.eachOf(ctx, strings.Replace(w.path, "/"+clusterVersion+"/", "/"+version+"/", 1), metav1.ListOptions{Limit: 1}, func([]byte) bool {
		none = false
		return true
	})
	return none, err
}

// eachOf calls each with the objects of the first page of a list.
func (w *kindWatch) eachOf(ctx context.Context, path string, o metav1.ListOptions, each func([]byte) bool) error {
	api, err := w.api.get()
	if err != nil {
		return err
	}
	body, err := api.Objects(ctx, path, o)
	if err != nil {
		return err
	}
	defer body.Close() //nolint:errcheck // nothing was written
	_, err = readList(body, each)
	return err
}

// otherVersions says that the agent cannot read what the API server has.
func (w *kindWatch) otherVersions(served []string) error {
	keeps := "those known before stay in force"
	if !w.Listed() {
		keeps = "until then all network policies of this node stay as they were when the agent started"
	}
	return fmt.Errorf("the API server has them only in version %s, and this release reads %s: serve %s again, or install a release that reads the other version; %s",
		cmp.Or(strings.Join(served, ", "), "none"), clusterVersion, clusterVersion, keeps)
}

// awaitKind waits until the kind's CustomResourceDefinition is established, or w.pause has passed: the
// agent may have no right to follow the definition, as with an earlier manifest.
func (w *kindWatch) awaitKind(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, resident.Jitter(w.pause))
	defer cancel()
	if w.optional || w.awaitDefinition(ctx) != nil {
		<-ctx.Done()
		return
	}
	clock.Sleep(ctx, settle)
}

// awaitDefinition returns nil when the definition is established, but only once for each version of the
// definition. If the kind is still not served then, only time or another change can help.
func (w *kindWatch) awaitDefinition(ctx context.Context) error {
	api, err := w.api.get()
	if err != nil {
		return err
	}
	body, err := api.Objects(ctx, definitionsPath, metav1.ListOptions{Watch: true, FieldSelector: "metadata.name=" + w.definition})
	if err != nil {
		return err
	}
	events := newJSONEvents(body, func(error) {})
	defer events.Close()
	for {
		kind, object, err := events.Decode()
		if err != nil {
			return err
		}
		if kind == watch.Deleted {
			return nil // look again
		}
		o, ok := object.(*jsonObject)
		if !ok || !slices.Contains([]watch.EventType{watch.Added, watch.Modified}, kind) || o.ResourceVersion == w.defined {
			continue
		}
		var d definition
		if err := json.Unmarshal(o.text, &d); err == nil && d.serves(clusterVersion) {
			w.defined = o.ResourceVersion
			return nil
		}
	}
}
