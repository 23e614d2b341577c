// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"iter"
)

// copies are what the agent keeps of one kind of the API's objects. What follows the kind gives it the objects as JSON,
// whatever they are for.
type copies interface {
	fmt.Stringer // the name of the API's resource, such as "networkpolicies"

	Set(object []byte) error
	Delete(namespace, name string)
	Replace(list iter.Seq2[[]byte, error]) error
	Report(err error)
	Listed() bool
}

// clusterOf is a copy of objects of several kinds (policies.Cluster, services.Cluster). What its methods promise is said there.
type clusterOf[K fmt.Stringer] interface {
	Set(k K, object []byte) error
	Delete(k K, namespace, name string)
	Replace(k K, list iter.Seq2[[]byte, error]) error
	Report(k K, err error)
	Listed(k K) bool
}

// kindOf is one kind of a cluster.
type kindOf[K fmt.Stringer] struct {
	cluster clusterOf[K]
	kind    K
}

func (k kindOf[K]) String() string                           { return k.kind.String() }
func (k kindOf[K]) Set(object []byte) error                  { return k.cluster.Set(k.kind, object) }
func (k kindOf[K]) Delete(namespace, name string)            { k.cluster.Delete(k.kind, namespace, name) }
func (k kindOf[K]) Replace(l iter.Seq2[[]byte, error]) error { return k.cluster.Replace(k.kind, l) }
func (k kindOf[K]) Report(err error)                         { k.cluster.Report(k.kind, err) }
func (k kindOf[K]) Listed() bool                             { return k.cluster.Listed(k.kind) }
