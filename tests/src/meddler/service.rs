//! The meddler as a gRPC service.

use super::{Disguise, Order, Path, Plan, answer::Answer, lock, meddling::Told, record::Lanes};
use futures::StreamExt;
use proto::v1::{self, HelloResponse, evaluator_client::EvaluatorClient};
use std::{
    pin::Pin,
    sync::{Arc, Mutex},
};
use tokio::sync::{mpsc, watch};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Code, Request, Response, Status, Streaming, transport::Channel};

/// Bytes of a message.
pub(super) const LARGEST: usize = 64 << 20;

pub(super) struct Service {
    pub(super) channel: Channel,
    pub(super) plan: Arc<Mutex<Plan>>,
    pub(super) held: watch::Receiver<Option<Path>>,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Service {
    fn real(&self) -> EvaluatorClient<Channel> {
        EvaluatorClient::new(self.channel.clone()).max_decoding_message_size(LARGEST)
    }

    /// Passes answers on, meddled with as planned.
    fn answers<A: Answer>(&self, mut answers: Streaming<A>) -> Response<Answers<A>> {
        let (plan, mut held) = (self.plan.clone(), self.held.clone());
        let (out, stream) = mpsc::channel(16);
        tokio::spawn(async move {
            while let Some(answer) = answers.next().await {
                if held.wait_for(|held| *held != Some(A::PATH)).await.is_err() {
                    return;
                }
                let told = match answer {
                    Ok(answer) => lock(&plan).tell(answer),
                    Err(status) => vec![Err(status)],
                };
                for message in told {
                    let ends = message.as_ref().is_err_and(|status| status.code() == Code::Ok);
                    if ends || out.send(message).await.is_err() {
                        return;
                    }
                }
            }
        });
        Response::new(Box::pin(ReceiverStream::new(stream)))
    }
}

#[tonic::async_trait]
impl v1::evaluator_server::Evaluator for Service {
    async fn hello(&self, request: Request<v1::HelloRequest>) -> Result<Response<HelloResponse>, Status> {
        let answer = self.real().hello(request.into_inner()).await?.into_inner();
        let Disguise { version, protocol, params_id } = lock(&self.plan).disguise.clone();
        Ok(Response::new(HelloResponse {
            version: version.unwrap_or(answer.version),
            protocol: protocol.unwrap_or(answer.protocol),
            params_id: params_id.unwrap_or(answer.params_id),
            ..answer
        }))
    }

    async fn lookup(&self, request: Request<v1::LookupRequest>) -> Result<Response<v1::LookupResponse>, Status> {
        self.real().lookup(request.into_inner()).await
    }

    type UploadStream = Answers<v1::UploadProgress>;

    async fn upload(
        &self,
        request: Request<Streaming<v1::UploadChunk>>,
    ) -> Result<Response<Self::UploadStream>, Status> {
        lock(&self.plan).seen.uploads += 1;
        let chunks = forward(request.into_inner(), |_| {});
        let progress = self.real().upload(chunks).await?.into_inner();
        Ok(Response::new(Box::pin(progress)))
    }

    type MultiplyStream = Answers<v1::TileAnswer>;

    async fn multiply(
        &self,
        request: Request<Streaming<v1::TileJob>>,
    ) -> Result<Response<Self::MultiplyStream>, Status> {
        let plan = self.plan.clone();
        let jobs = forward(request.into_inner(), move |job| lock(&plan).record.direct(job));
        Ok(self.answers(self.real().multiply(jobs).await?.into_inner()))
    }

    type OnlineStream = Answers<v1::OnlineAnswer>;

    async fn online(&self, request: Request<Streaming<v1::OnlineJob>>) -> Result<Response<Self::OnlineStream>, Status> {
        let plan = self.plan.clone();
        let jobs = forward(request.into_inner(), move |job| lock(&plan).record.online(job));
        Ok(self.answers(self.real().online(jobs).await?.into_inner()))
    }

    type BulkStream = Answers<v1::BulkAnswer>;

    async fn bulk(&self, request: Request<Streaming<v1::BulkJob>>) -> Result<Response<Self::BulkStream>, Status> {
        let (plan, mut lanes) = (self.plan.clone(), Lanes::default());
        let jobs = forward(request.into_inner(), move |job| lock(&plan).record.bulk(&mut lanes, job));
        Ok(self.answers(self.real().bulk(jobs).await?.into_inner()))
    }
}

impl Plan {
    /// What is sent for `answer`.
    fn tell<A: Answer>(&mut self, answer: A) -> Told<A> {
        let Some(numbers) = answer.numbers().cloned() else { return vec![Ok(answer)] };
        let past = self.past.insert((A::PATH, numbers.len()), numbers.clone());
        let Some(Order { path, what, skip, times: times @ 1.. }) = &mut self.order else { return vec![Ok(answer)] };
        if *path != A::PATH {
            return vec![Ok(answer)];
        }
        if *skip > 0 {
            *skip -= 1;
            return vec![Ok(answer)];
        }
        // Without a past there is nothing stale to send yet.
        let Some(past) = past else { return vec![Ok(answer)] };
        *times -= 1;
        self.seen.meddled += 1;
        what.apply(&answer, &numbers, &past)
    }
}

/// Passes messages on until either side ends.
fn forward<T: Send + 'static>(mut from: Streaming<T>, mut look: impl FnMut(&T) + Send + 'static) -> ReceiverStream<T> {
    let (out, stream) = mpsc::channel(16);
    tokio::spawn(async move {
        while let Some(Ok(message)) = from.next().await {
            look(&message);
            if out.send(message).await.is_err() {
                return;
            }
        }
    });
    ReceiverStream::new(stream)
}
