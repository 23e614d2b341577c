// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/patchbay-net/patchbay/daemons/node/lan"
)

// leasesPath has the Leases of addresses and of nodes.
const leasesPath = "/apis/coordination.k8s.io/v1/namespaces/" + lan.Namespace + "/leases"

// lanServer is the API server for the addresses of load balancers. Renewals have a connection of their own: many acts, of which a client
// sends only so many a second, must not delay them.
type lanServer struct{ acts, renewals *connection }

// ask sends a request. An object that was changed or is gone gives lan.ErrConflict.
func ask(ctx context.Context, c *connection, verb, path string, body []byte) ([]byte, error) {
	kind := runtime.ContentTypeJSON
	if verb == http.MethodPatch {
		kind = string(types.MergePatchType)
	}
	api, err := c.get()
	if err != nil {
		return nil, err
	}
	answer, err := api.Request(ctx, verb, path, kind, body)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
		err = fmt.Errorf("%w: %w", lan.ErrConflict, err)
	}
	return answer, err
}

// write creates a Lease if it has no version, and replaces it otherwise.
func write(ctx context.Context, c *connection, name, version string, body []byte) ([]byte, error) {
	if version == "" {
		return ask(ctx, c, http.MethodPost, leasesPath, body)
	}
	return ask(ctx, c, http.MethodPut, leasesPath+"/"+name, body)
}

func (s lanServer) Session(ctx context.Context, node string) (id, version string, err error) {
	text, err := ask(ctx, s.renewals, http.MethodGet, leasesPath+"/"+lan.SessionName(node), nil)
	if apierrors.IsNotFound(err) {
		return "", "", nil
	}
	if err != nil {
		return "", "", err
	}
	l, err := lan.ReadSession(text)
	return l.ID, l.Version, err
}

func (s lanServer) Renew(ctx context.Context, node, id, version string, lasts time.Duration) (newer string, err error) {
	body, err := lan.Session{ID: id, Version: version, Lasts: lasts}.JSON(node, time.Now())
	if err != nil {
		return "", err
	}
	text, err := write(ctx, s.renewals, lan.SessionName(node), version, body)
	if err != nil {
		return "", err
	}
	l, err := lan.ReadSession(text)
	return l.Version, err
}

func (s lanServer) End(ctx context.Context, node, version string) error {
	return remove(ctx, s.renewals, lan.SessionName(node), "", version)
}

func (s lanServer) Put(ctx context.Context, l lan.Holding) (lan.Holding, error) {
	body, err := l.JSON()
	if err != nil {
		return l, err
	}
	text, err := write(ctx, s.acts, lan.LeaseName(l.Addr), l.Version, body)
	if err != nil {
		return l, err
	}
	return lan.ReadLease(text)
}

func (s lanServer) Remove(ctx context.Context, l lan.Holding) error {
	return remove(ctx, s.acts, lan.LeaseName(l.Addr), l.Object, l.Version)
}

// remove deletes a Lease of a version.
func remove(ctx context.Context, c *connection, name, uid, version string) error {
	type preconditions struct {
		UID             string `json:"uid,omitempty"`
		ResourceVersion string `json:"resourceVersion"`
	}
	body, err := json.Marshal(struct {
		APIVersion    string        `json:"apiVersion"`
		Kind          string        `json:"kind"`
		Preconditions preconditions `json:"preconditions"`
	}{"v1", "DeleteOptions", preconditions{uid, version}})
	if err == nil {
		_, err = ask(ctx, c, http.MethodDelete, leasesPath+"/"+name, body)
	}
	return err
}

func (s lanServer) Write(ctx context.Context, svc *lan.Service, status []netip.Addr) error {
	type ingress struct {
		IP     string `json:"ip"`
		IPMode string `json:"ipMode"`
	}
	list := []ingress{}
	for _, a := range status {
		list = append(list, ingress{a.String(), "VIP"})
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]string{"uid": svc.UID, "resourceVersion": svc.Version},
		"status":   map[string]any{"loadBalancer": map[string]any{"ingress": list}},
	})
	if err == nil {
		_, err = ask(ctx, s.acts, http.MethodPatch, "/api/v1/namespaces/"+svc.Name.Namespace+"/services/"+svc.Name.Name+"/status", body)
	}
	return err
}
